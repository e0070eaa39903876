"""Weights as a format stores them: the values and their scales, under the names of published checkpoints."""

from __future__ import annotations

import torch

from sglang_cp.cpu_reference.kernels.mxfp4 import dynamic_mxfp4_quant
from sglang_cp.cpu_reference.kernels.quant import quantize
from sglang_cp.tiny_checkpoint.config import TinyConfig
from sglang_cp.tiny_checkpoint.formats import BLOCK, rounds_scales, scheme_of


def stored(name: str, weight: torch.Tensor, config: TinyConfig) -> dict[str, torch.Tensor]:
    """What a checkpoint holds of the tensor `name`: itself, or quantized values and their scales.

    `weight` `[outputs, inputs]` becomes, with the names that follow it:

    block: FP8, `weight_scale_inv` float32 `[ceil(outputs / 128), ceil(inputs / 128)]`;
    channel: FP8, `weight_scale` float32 `[outputs]`;
    tensor: FP8, `weight_scale` float32 `[]`;
    mxfp4: uint8 `[outputs, inputs / 2]`, two values a byte, `weight_scale` uint8 (e8m0) `[outputs, inputs / 32]`.
    """
    match scheme_of(config.attn_quant, name):
        case None:
            return {name: weight}
        case "block":
            values, scale = _by_blocks(weight, rounds_scales(config.attn_quant, config.arch))
            return {name: values, f"{name}_scale_inv": scale}
        case "channel":
            values, scale = quantize(weight, weight.shape[1], round_scale_up_to_power_of_two=False)
            return {name: values, f"{name}_scale": scale.squeeze(1)}
        case "tensor":
            values, scale = quantize(weight.flatten(), weight.numel(), round_scale_up_to_power_of_two=False)
            return {name: values.view_as(weight), f"{name}_scale": scale.squeeze()}
        case "mxfp4":
            values, scale = dynamic_mxfp4_quant(weight)
            return {name: values, f"{name}_scale": scale}


def _by_blocks(weight: torch.Tensor, round_scales: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 values `[n, k]` and the float32 scales of 128 x 128 blocks; the last ones may be smaller."""
    n, k = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -k % BLOCK, 0, -n % BLOCK))
    blocks = padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK)).transpose(1, 2).flatten(2)
    values, scale = quantize(blocks, BLOCK * BLOCK, round_scale_up_to_power_of_two=round_scales)
    laid_out = values.unflatten(2, (BLOCK, BLOCK)).transpose(1, 2).flatten(2).flatten(0, 1)
    return laid_out[:n, :k].contiguous(), scale.squeeze(2)
