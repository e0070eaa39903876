"""The calibration file of a server, kept between its starts.

A cache: whatever is wrong with it, the server still starts.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from sglang_cp.cost.calibration import Calibration, CalibrationKey, read_calibration, write_calibration
from sglang_cp.errors import UsageError

logger = logging.getLogger(__name__)

DIRECTORY = "SGLANG_CP_CACHE_DIR"
"""Names the directory in the environment; by default it is sglang-cp/calibration in the user's cache directory."""


def cache_path(key: CalibrationKey) -> Path:
    """The file for servers with ``key``."""
    chosen = os.environ.get(DIRECTORY)
    if chosen:
        return Path(chosen) / key.file_name
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user_cache) / "sglang-cp" / "calibration" / key.file_name


def read_cached(key: CalibrationKey) -> Calibration | None:
    """The cached calibration, or None; a file that cannot be used is one warning."""
    path = cache_path(key)
    if not path.exists():
        return None
    try:
        return read_calibration(path, key)
    except UsageError as error:
        logger.warning("CP: %s It is measured now.", error)
        return None


def write_cached(calibration: Calibration) -> Path | None:
    """Keep it; returns where, or None (and one warning) if that cannot be written."""
    path = cache_path(calibration.key)
    try:
        write_calibration(path, calibration)
    except UsageError as error:
        logger.warning("CP: %s With %s another directory is used.", error, DIRECTORY)
        return None
    return path
