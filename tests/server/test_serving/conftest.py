import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from evals.arms import Arm
from evals.plugins import with_plugin
from evals.server import running
from tests.server.test_serving import faults
from tests.server.test_serving.pair import CHUNK, MIN_TOKENS, POOL_TOKENS, Pair

FLAGS = (
    *("--max-total-tokens", str(POOL_TOKENS)),
    *("--schedule-conservativeness", "0.1"),  # take requests in although they may not fit to their end
    *("--enable-return-hidden-states", "--enable-streaming-session", "--enable-priority-scheduling"),
)
# Upstream's own accounting of the pool's pages after every batch, on every rank: a page too few ends the server.
CHECKS = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1", "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1"}


@pytest.fixture(scope="package")
def fault_file(tmp_path_factory) -> Path:
    """Names the fault that is planted in the CP server; there is none at first."""
    return tmp_path_factory.mktemp("serving-faults") / "planted"


@pytest.fixture(scope="package")
def expected() -> dict:
    """Answers that the reference gave."""
    return {}


@pytest.fixture(scope="package")
def pair_with(fault_file, expected, reference_of, checkpoint, logs):
    """A context manager: the pair of the reference and a server with CP of the given placement."""

    @contextlib.contextmanager
    def start(placement):
        arm = Arm(f"serving-{placement}", 2, placement, min_tokens=MIN_TOKENS, chunk=CHUNK)
        spec = arm.spec(checkpoint("glm"), "float32")
        spec = replace(spec, args=(*spec.args, *FLAGS))
        spec = with_plugin(spec, faults, fault_file.parent / "site", **{faults.FILE: str(fault_file)}, **CHECKS)
        reference = reference_of("glm", "float32").server
        with running(spec, logs) as candidate:
            yield Pair(reference, candidate, expected)

    return start


@pytest.fixture(scope="package")
def pair(pair_with):
    with pair_with("sharded") as started:
        yield started


@pytest.fixture(scope="package")
def log_of(logs):
    """The log of the server with a placement, so far."""

    def read(placement: str) -> str:
        (log,) = logs.glob(f"serving-{placement}-*.log")
        return log.read_text()

    return read
