"""The estimate against SGLang's own loader: a tiny checkpoint on the CPU platform, two ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_cp.doctor.estimate import Serving, estimate
from sglang_cp.doctor.kv_pool import KVPool
from sglang_cp.doctor.model_config import Geometry, read_config
from sglang_cp.doctor.weight_memory import Platform
from sglang_cp.tiny_checkpoint.config import TinyConfig
from sglang_cp.tiny_checkpoint.formats import SIZES, AttnQuant
from sglang_cp.tiny_checkpoint.writer import write_tiny_checkpoint

CPU = Platform(2, 4, 4, absorbs_block_fp8=False, fuses_index_projections=False, scales_fp8_latents=True)
REPLICATED = ("--enable-prefill-cp", "--cp-strategy", "interleave", "--cp-attn-weights", "replicated")
MAX_TOKENS = 1000


def loaded(model: Path, out: Path, *flags: str) -> list[dict[str, int]]:
    """Sizes of both ranks as they are in memory."""
    out.mkdir()
    port = str(20000 + os.getpid() % 10000)
    command = [sys.executable, "-m", "tests.doctor.loaded_bytes", str(model), str(out), "2", port]
    environment = os.environ | {"SGLANG_PLATFORM": "cpu_reference", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*command, "--max-total-tokens", str(MAX_TOKENS), *flags], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads((out / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("quantization", "arm", "flags", "scalars_per_layer"),
    [
        # SGLang keeps a key scale and a value scale for each of two attention objects of a quantized layer.
        ("mxfp4", "off", (), 4),
        ("block-fp8", "replicated", REPLICATED, 4),
    ],
)
def test_estimate_is_what_sglang_loads(
    tmp_path: Path, quantization: AttnQuant, arm: str, flags: tuple[str, ...], scalars_per_layer: int
) -> None:
    model = tmp_path / "model"
    write_tiny_checkpoint(model, TinyConfig(attn_quant=quantization, **SIZES[quantization]))
    ranks = loaded(model, tmp_path / "out", *flags)
    config = read_config(model)
    expected = estimate(config, Serving(2, platform=CPU))[arm].weight_bytes
    scalars = 4 * scalars_per_layer * config["num_hidden_layers"]
    assert [rank["weights"] for rank in ranks] == [expected + scalars] * 2

    pool = KVPool(Geometry.from_config(config))
    tokens = pool.tokens(MAX_TOKENS * pool.token_bytes)
    assert [(rank["pool_tokens"], rank["pool"]) for rank in ranks] == [(tokens, pool.allocated_bytes(tokens))] * 2
