"""Loads a module as an SGLang plugin into one server, as if it were installed."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from evals.server import ServerSpec


def with_plugin(spec: ServerSpec, plugin: ModuleType, folder: Path, **env: str) -> ServerSpec:
    """``spec`` with ``plugin`` loaded into the server's processes.

    Args:
        plugin: a module that stands alone, with a function ``register``.
        folder: where its installation goes; it must outlast the server.
        env: more environment variables for the server.
    """
    assert plugin.__file__ is not None
    name = Path(plugin.__file__).stem
    info = folder / f"{name}-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    shutil.copy(plugin.__file__, folder)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {name}:register\n")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return replace(spec, env={**spec.env, "PYTHONPATH": path, **env})
