"""FP8 quantization, and that of index queries and keys with it (twin of upstream's `act_quant`)."""

from __future__ import annotations

import torch

from sglang_cp.cpu_reference.settings import Mode, mode

FP8 = torch.float8_e4m3fn
_FP8_MAX = 448.0
_MIN_AMAX = 1e-4  # upstream's kernels for index queries and keys keep a zero row's scale above zero with it


class IndexedCpuTensor(torch.Tensor):
    """A CPU tensor whose device says `cpu:0`.

    Upstream asserts that index queries live on an *indexed* CUDA device; torch forgets the index of the one CPU
    device. Nothing but the answer to `.device` changes, and the scoring kernels take plain tensors out again.
    """

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cpu", 0)


def quantize(
    x: torch.Tensor, block_size: int, round_scale_up_to_power_of_two: bool, min_amax: float = _MIN_AMAX
) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 values and float32 scales of `x` `[..., n]`, one scale `[..., n // block_size]` a block.

    scale = max(amax, min_amax) / 448, value = round_to_fp8(x / scale).
    """
    blocks = x.float().reshape(*x.shape[:-1], x.shape[-1] // block_size, block_size)
    scale = blocks.abs().amax(-1).clamp_min(min_amax) / _FP8_MAX
    if round_scale_up_to_power_of_two:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    values = (blocks / scale.unsqueeze(-1)).clamp(-_FP8_MAX, _FP8_MAX).flatten(-2)
    return values.to(FP8), scale


def quantize_index_key(key: torch.Tensor, exact: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Stored values and scale `[..., 1]` of index keys `[..., 128]`; exact keeps float32 and a scale of one."""
    if exact:
        return key.float(), torch.ones(*key.shape[:-1], 1)
    return quantize(key, key.shape[-1], round_scale_up_to_power_of_two=False)


def act_quant(
    x: torch.Tensor, block_size: int = 128, scale_fmt: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Upstream's `act_quant`: FP8 values and float32 scales; exact mode returns float32 values and ones."""
    if mode() is Mode.EXACT:
        values, scale = x.float(), torch.ones(*x.shape[:-1], x.shape[-1] // block_size)
    else:
        values, scale = quantize(x, block_size, round_scale_up_to_power_of_two=scale_fmt is not None)
    return values.as_subclass(IndexedCpuTensor), scale
