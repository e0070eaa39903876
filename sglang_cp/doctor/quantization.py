"""How many bytes a linear layer's weight takes: BF16, FP8 and Quark MXFP4 checkpoints, with their exclude lists."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_cp.errors import UsageError


@dataclass(frozen=True)
class Format:
    """Element width and scales of a weight matrix.

    Attributes:
        bits: per element.
        scale_bytes: per scale, 0 without scales.
        block: rows and columns that share a scale; None for all of them.
    """

    bits: int
    scale_bytes: int = 0
    block: tuple[int | None, int | None] = (None, None)

    def parts(self, rows: int, columns: int) -> tuple[int, int]:
        """Bytes of the elements, and of the scales, of a matrix of [rows, columns]."""
        row_blocks, column_blocks = (
            -(-size // (block or size)) for size, block in zip((rows, columns), self.block, strict=True)
        )
        return rows * columns * self.bits // 8, row_blocks * column_blocks * self.scale_bytes

    def num_bytes(self, rows: int, columns: int) -> int:
        return sum(self.parts(rows, columns))


SIXTEEN_BIT = Format(16)
MXFP4 = Format(4, scale_bytes=1, block=(1, 32))
"""OCP microscaling: one E8M0 scale for 32 elements of a row."""
FP8_PER_CHANNEL = Format(8, scale_bytes=4, block=(1, None))
FP8_PER_TENSOR = Format(8, scale_bytes=4)

FormatOf = Callable[[str], Format]
"""From a module's name in the checkpoint, such as ``model.layers.3.self_attn.o_proj``, to its format."""


def format_of(config: Mapping[str, Any]) -> FormatOf:
    """Formats by a config.json's ``quantization_config``; without one every weight has 16 bits.

    A float32 checkpoint counts as 16 bits too: SGLang's ``--dtype auto`` serves it in float16. Raises UsageError for
    a quantization method that this estimate does not know.
    """
    quantization = config.get("quantization_config")
    if not quantization:
        return lambda _: SIXTEEN_BIT
    method = quantization.get("quant_method")
    if method == "fp8":
        return _fp8(quantization)
    if method == "quark":
        return _quark(quantization)
    raise UsageError(f"Quantization {method!r} is not one that the memory estimate knows (none, fp8, quark).")


def _fp8(quantization: Mapping[str, Any]) -> FormatOf:
    block = quantization.get("weight_block_size")
    quantized = Format(8, scale_bytes=4, block=(block[0], block[1])) if block else FP8_PER_TENSOR
    excluded = quantization.get("ignored_layers") or quantization.get("modules_to_not_convert") or []
    return lambda name: SIXTEEN_BIT if _matches(name, excluded) else quantized


def _quark(quantization: Mapping[str, Any]) -> FormatOf:
    """Quark's order of precedence: excluded, else the first matching layer pattern, else the global scheme."""
    excluded = quantization.get("exclude") or []
    by_pattern = {
        pattern: _quark_scheme(scheme) for pattern, scheme in (quantization.get("layer_quant_config") or {}).items()
    }
    otherwise = _quark_scheme(quantization.get("global_quant_config") or {})

    def lookup(name: str) -> Format:
        if _matches(name, excluded):
            return SIXTEEN_BIT
        return next((form for pattern, form in by_pattern.items() if _matches(name, [pattern])), otherwise)

    return lookup


def _quark_scheme(scheme: Mapping[str, Any]) -> Format:
    weight = scheme.get("weight")
    if not weight:
        return SIXTEEN_BIT
    dtype, qscheme = weight.get("dtype"), weight.get("qscheme")
    if dtype == "fp4" and weight.get("group_size") == 32:
        return MXFP4
    if dtype == "fp8_e4m3" and qscheme in ("per_channel", "per_tensor"):
        return FP8_PER_CHANNEL if qscheme == "per_channel" else FP8_PER_TENSOR
    raise UsageError(f"Quark weights of {dtype} {qscheme} are not ones that the memory estimate knows (MXFP4, FP8).")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a module is named by a list: ``re:`` and a regular expression, a glob, or a part of the dotted path."""
    return any(
        re.match(pattern[3:], name)
        if pattern.startswith("re:")
        else fnmatch.fnmatchcase(name, pattern) or f".{pattern}." in f".{name}."
        for pattern in patterns
    )
