"""A fault in a CP extend ends the server: with a message, in the watchdog's time, and without a process left over.

``test_metrics`` ends its server by killing a rank.
"""

import pytest

from evals.arms import Arm
from tests.server import ending_faults
from tests.server.ended import WATCHDOG_SECONDS, faulty


@pytest.fixture
def server(request, checkpoint, logs):
    with faulty(Arm(request.param, 2, "sharded").spec(checkpoint("glm"), "float32"), logs) as started:
        yield started


@pytest.mark.parametrize("server", ["stopped"], indirect=True)
def test_a_rank_that_stops_answering_in_a_pull(server):
    log = server.end_of(ending_faults.STOPPED)
    assert (
        "CP: this batch runs as cp: 2 x 50 rows (100 >= 2); this rank waits for the shards of attention layer 1 "
        "(process group): another rank has stopped"
    ) in log
    assert f"Scheduler watchdog timeout (self.watchdog_timeout={WATCHDOG_SECONDS}" in log


@pytest.mark.parametrize("server", ["out-of-memory"], indirect=True)
def test_out_of_memory_on_one_rank(server):
    """As with CP off: the rank logs it and has the server end; the other one does not wait for it."""
    log = server.end_of(ending_faults.OUT_OF_MEMORY)
    assert "TP1] CP: this rank failed in a batch that runs as cp: 2 x 50 rows (100 >= 2). If the error is of a" in log
    assert "TP1] Scheduler hit an exception: Traceback" in log
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (planted)." in log
    assert "SIGQUIT received" in log
    assert "watchdog timeout" not in log
