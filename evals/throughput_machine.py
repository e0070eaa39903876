"""The machine and the versions that figures were measured with, as far as they can be told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sglang_cp.doctor.machine import ask
from sglang_cp.patching.series import read_series
from sglang_cp.pin import read_pin, series_dir

# In a process of its own, which gives the GPUs' memory back before a server sizes its KV pool.
_EXAMINE = """
import dataclasses, json
from sglang_cp.doctor.machine import examine
print(json.dumps(dataclasses.asdict(examine())))
"""


def describe() -> tuple[dict[str, str | None], dict[str, Any]]:
    """Versions by component, None where one cannot be told; and the devices and how they are connected."""
    found = json.loads(_said(sys.executable, "-c", _EXAMINE) or '{"versions": [], "gpus": {"value": []}}')
    release = read_pin().release
    versions = {item["name"]: item["found"]["value"] for item in found["versions"]}
    versions |= {
        "sglang-cp": ask(lambda: version("sglang-cp")).value,
        "patch series": read_series(series_dir(release), release).digest,
        "commit": _said("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"),
        "driver": _first_line(_said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")),
    }
    machine = {
        "gpus": [f"{gpu['name']}, {gpu['memory_bytes'] / 2**30:.0f} GiB" for gpu in found["gpus"]["value"] or ()],
        "topology": _said("nvidia-smi", "topo", "-m"),
        "cpus": os.cpu_count(),
    }
    return versions, machine


def _said(*command: str) -> str | None:
    """Standard output, None if the command cannot be run or fails."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout.strip()


def _first_line(text: str | None) -> str | None:
    return text.partition("\n")[0] if text else None
