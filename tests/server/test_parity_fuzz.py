"""About three minutes of traffic at one CP server: the replays one by one, then generated streams, all compared.

After ``test_parity``, whose reference it shares. ``--soak-minutes`` sets the time.
"""

from pathlib import Path

from evals.fuzz.arms import DTYPE, FUZZ_ARMS
from evals.fuzz.generate import generate
from evals.fuzz.reference import Reference
from evals.fuzz.results import Replay
from evals.server import running
from evals.soak import soak, table, watched

REPLAYS = sorted((Path(__file__).parents[1] / "replays").glob("*.json"))
ARM = next(arm for arm in FUZZ_ARMS if arm.name == "tp2-sharded-96")
SEED = 7
WARM_UP = 0.3
"""The replays came before; the largest batches come in this share of the time."""


def test_replays_and_generated_streams_agree_and_nothing_leaks(reference_of, checkpoint, logs, request, capsys):
    replays = {path.stem: Replay.read(path).stream for path in REPLAYS}
    assert len(replays) >= 12
    reference = Reference(reference_of("glm", DTYPE).server.url)
    with running(watched(ARM, checkpoint("glm")), logs) as server:
        result = soak(
            server,
            reference,
            lambda number: generate(SEED, number),
            minutes=request.config.getoption("--soak-minutes"),
            first=replays,
            warm_up=WARM_UP,
            pause_s=30.0,
            interval_s=2.0,
        )
    with capsys.disabled():
        print("\n" + table(result, rows=6))
    assert not result.problems, "\n".join(result.problems)
    assert result.streams > len(replays), "no time was left for generated streams"
    assert result.counters["cp_rows_over_topk"]
