"""GLM-5.2's geometry, and machines that the doctor could find."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglang_cp.doctor.machine import GPU, Fact, Machine

CONFIGS = Path(__file__).parent / "configs"


@pytest.fixture
def glm_mxfp4() -> dict[str, Any]:
    """amd/GLM-5.2-MXFP4: zai-org/GLM-5.2's geometry, and the exclude list of the model card's Quark command."""
    config: dict[str, Any] = json.loads((CONFIGS / "glm-5.2-mxfp4.json").read_text(encoding="utf-8"))
    return config


@pytest.fixture
def glm_bf16(glm_mxfp4) -> dict[str, Any]:
    return {name: value for name, value in glm_mxfp4.items() if name != "quantization_config"}


@pytest.fixture
def machine() -> Machine:
    """A node of four MI355X on which nothing is wrong."""
    gpus = [GPU(index, "AMD Instinct MI355X", "gfx950", 288 << 30) for index in range(4)]
    return Machine(
        versions=[],
        patches=Fact("applied"),
        plugin=Fact("installed"),
        rocm=True,
        gpus=Fact(gpus),
        unreachable=Fact([]),
        symmetric_memory=Fact("CUDA"),
        aiter=Fact("0.1.16"),
    )


@pytest.fixture
def no_gpu(machine) -> Machine:
    none = Fact(None, "No HIP GPUs are available")
    return replace(machine, gpus=none, unreachable=none, symmetric_memory=none)
