"""The SGLang platform: what a server gets when it is started with `SGLANG_PLATFORM=cpu_reference`."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuSRTPlatform
from sglang.srt.platforms.device_mixin import PlatformEnum

from sglang_cp.cpu_reference import defaults, settings

logger = logging.getLogger(__name__)

if torch.cuda.is_available():
    raise SystemExit(
        "The CPU reference platform was chosen (SGLANG_PLATFORM=cpu_reference), but this process sees a GPU, for which "
        "SGLang would pick GPU code: hide it with CUDA_VISIBLE_DEVICES= (HIP_VISIBLE_DEVICES= on ROCm)."
    )

# Upstream decorates module-level functions with torch.compile, partly for its default backend: inductor would need a
# C++ compiler and minutes. Torch reads the variable when it decorates, after this import, and ranks inherit it.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

# The indexer's fused kernels skip a BF16 rounding that a context-parallel extend, which cannot use them, does: with
# them the faithful mode would differ from itself. They are off, as on ROCm; SGLANG_DISABLE_DSA_INDEXER_FUSION=0 turns
# them on.
os.environ.setdefault("SGLANG_DISABLE_DSA_INDEXER_FUSION", "1")


class CpuReferencePlatform(CpuSRTPlatform):
    """An out-of-tree platform with the device operations of upstream's CPU platform."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Fill in what was not given; refuse, with one sentence, what the platform cannot serve."""
        require_installed()
        try:
            mode = defaults.apply(server_args)
        except settings.SettingsError as error:
            raise SystemExit(str(error)) from None
        settings.publish_mode(mode)
        logger.info(
            "CPU reference platform (for correctness, not for speed), %s mode: %s.",
            mode.value,
            "float32 latents and index keys" if mode is settings.Mode.EXACT else "BF16 latents, FP8 index keys",
        )

    def get_device(self, device_id: int = 0) -> str:
        """The device string for a server started without `--device`."""
        return "cpu"

    def get_default_attention_backend(self) -> str:
        return "dsa"

    def get_dsa_kv_pool_cls(self) -> type:
        require_installed()
        if settings.mode() is settings.Mode.EXACT:
            from sglang_cp.cpu_reference.pool import ExactDSATokenToKVPool

            return ExactDSATokenToKVPool
        from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool

        return DSATokenToKVPool  # type: ignore[no-any-return]

    def get_paged_allocator_cls(self) -> type:
        from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator

        return PagedTokenToKVPoolAllocator  # type: ignore[no-any-return]

    def get_compile_backend(self, mode: str | None = None) -> str:
        return "eager"

    def get_dispatch_key_name(self) -> str:
        """Operators run their `forward_native`; the plugin sends the indexer to `forward_cuda`."""
        return "native"


def require_installed() -> None:
    """End the start unless the plugin has put the kernels in place in this process."""
    from sglang_cp.cpu_reference.install import is_installed

    if not is_installed():
        raise SystemExit(
            "The CPU reference platform is selected, but its kernels are not in place: SGLang did not run the plugin "
            f"{settings.PLATFORM_NAME} (if SGLANG_PLUGINS is set, name it there)."
        )
