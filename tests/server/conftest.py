"""Real servers on the CPU reference platform, started as seldom as possible: the reference once for each model."""

import contextlib
from pathlib import Path

import pytest

from evals.arms import reference_spec
from evals.checks import Reference
from evals.prompts import tokenize
from evals.server import running
from sglang_cp.tiny_checkpoint.config import TinyConfig
from sglang_cp.tiny_checkpoint.writer import write_tiny_checkpoint

MODELS = {
    "glm": TinyConfig(),
    "glm-other": TinyConfig(seed=1),
    "glm-index-share": TinyConfig(index_share=True, indexer_rope_interleave=True),
    "glm-nextn": TinyConfig(nextn=True, index_share=True, indexer_rope_interleave=True),
    "deepseek-v32": TinyConfig(arch="deepseek-v32"),
    "block-fp8": TinyConfig.stored_as("block-fp8", arch="deepseek-v32"),
    "mxfp4": TinyConfig.stored_as("mxfp4"),
    "quark-fp8": TinyConfig.stored_as("quark-fp8"),
}


@pytest.fixture(scope="session")
def logs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("server-logs")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A function from a name in MODELS to a checkpoint's directory."""
    root = tmp_path_factory.mktemp("checkpoints")

    def get(name: str) -> Path:
        if not (root / name).exists():
            write_tiny_checkpoint(root / name, MODELS[name])
        return root / name

    return get


@pytest.fixture(scope="session")
def tokens(checkpoint) -> list[int]:
    return tokenize(str(checkpoint("glm")))


@pytest.fixture(scope="session")
def reference_of(checkpoint, logs):
    """A function from (model, dtype) to plain SGLang at tp 1 with CP off.

    Asked for the same again, it is the same server with the answers it already gave; asked for another, that one takes
    its place, so that a test has two servers at most.
    """
    with contextlib.ExitStack() as server:
        current = {}

        def get(model: str, dtype: str) -> Reference:
            if (model, dtype) not in current:
                server.close()
                current.clear()
                spec = reference_spec(checkpoint(model), dtype)
                current[model, dtype] = Reference(server.enter_context(running(spec, logs)))
            return current[model, dtype]

        yield get
