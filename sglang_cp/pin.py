"""The one pin: which SGLang release this package patches (the file UPSTREAM)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sglang_cp.compat import tomllib
from sglang_cp.errors import UsageError

_PACKAGE_DIR = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Pin:
    """An SGLang release and the sha256 (hex) of its wheel by Python tag, such as ``cp311``."""

    release: str
    wheel_sha256: Mapping[str, str]


def data_dir() -> Path:
    """Directory that holds UPSTREAM and patches/: inside an installed wheel, or the root of a checkout."""
    installed = _PACKAGE_DIR / "_data"
    return installed if installed.is_dir() else _PACKAGE_DIR.parent


def read_pin(path: Path | None = None) -> Pin:
    """Read UPSTREAM (default: the one that this package came with). Raises UsageError if it is not usable."""
    path = path or data_dir() / "UPSTREAM"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        release, wheels = table["release"], table["wheel_sha256"]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError) as error:
        raise UsageError(f"The pin {path} cannot be read ({error!r}); re-install sglang-cp.") from error
    if not (isinstance(release, str) and isinstance(wheels, dict)):
        raise UsageError(f"The pin {path} must hold a string `release` and a table `wheel_sha256`.")
    return Pin(release, wheels)


def series_dir(release: str) -> Path:
    """Directory of the patch series for an SGLang release."""
    return data_dir() / "patches" / release
