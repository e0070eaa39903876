"""CPU reference platform: upstream SGLang's own Python on plain torch kernels.

A reference for correctness, not for speed. Selected only by `SGLANG_PLATFORM=cpu_reference`.
"""

from __future__ import annotations

from sglang_cp.cpu_reference.settings import is_selected


def activate() -> str | None:
    """Entry point of `sglang.srt.platforms`: the platform class's path, or None when not selected.

    Auto-discovery calls every installed platform's `activate`, so without the explicit choice this must
    stay out of the way: a machine with GPUs keeps its own platform.
    """
    return "sglang_cp.cpu_reference.platform.CpuReferencePlatform" if is_selected() else None
