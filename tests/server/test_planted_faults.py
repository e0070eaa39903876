"""The parity harness sees planted faults, and sees nothing without one."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from evals.arms import Arm
from evals.checks import single
from evals.parity import MAX_LOGPROB_NATS, judge
from evals.prompts import slices
from evals.server import running
from tests.server import planted_faults

LENGTHS = (7, 65, 300)


@pytest.fixture(scope="module")
def fault_file(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("faults") / "planted"


@pytest.fixture(scope="module")
def server(fault_file, checkpoint, logs):
    """A CP server that also loads the plugin of planted faults, as if it were installed."""
    site = fault_file.parent / "site"
    info = site / "planted_faults-0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(planted_faults.__file__, site)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted-faults\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nplanted_faults = planted_faults:register\n")
    spec = Arm("planted-faults", 2, "sharded").spec(checkpoint("glm"), "float32")
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    env = {**spec.env, "PYTHONPATH": path, planted_faults.FILE: str(fault_file)}
    with running(replace(spec, env=env), logs) as running_server:
        yield running_server


@pytest.mark.parametrize("fault", ["", *planted_faults.FAULTS])
def test_harness_sees_the_fault(fault, reference_of, server, fault_file, tokens):
    reference = reference_of("glm", "float32")
    fault_file.write_text(fault)
    checks = [single(reference, server, slices(tokens, LENGTHS), on=lambda *_: None)]
    result = judge("planted", checks, server.cp_counters(), expect_cp=True, tolerance=MAX_LOGPROB_NATS)
    assert bool(result.problems) == bool(fault), result
