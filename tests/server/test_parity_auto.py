"""With ``--cp-min-tokens auto`` both modes serve in one run, with plain SGLang's answers; the server measures anew, and
the bench of the decision times its grid there.

After ``test_parity``, whose reference it shares.
"""

import pytest
import typer
from sglang.srt.utils.hf_transformers_utils import get_config
from typer.testing import CliRunner

from evals import regret
from evals.arms import Arm
from evals.checks import MAX_LOGPROB_NATS, ask, batch, greedy, single
from evals.parity import judge
from evals.prompts import BATCH, LENGTHS, slices
from evals.regret_grid import small_grid
from evals.regret_times import read_times
from evals.server import running
from sglang_cp.calibration.cache import read_cached, write_cached
from sglang_cp.calibration.key import calibration_key
from sglang_cp.cli import app
from sglang_cp.cost.shape import ExtendShape
from tests.calibration.examples import cp_from_100_tokens

MODEL, DTYPE = "glm", "float32"
ARM = Arm("tp2-auto", 2, "sharded", min_tokens="auto", chunk=512)


@pytest.fixture
def key(checkpoint, tmp_path, monkeypatch):
    """The server's; its calibration deals out extends from 102 new tokens on."""
    monkeypatch.setenv("SGLANG_CP_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("SGLANG_CP_CHECK_AGREEMENT", "1")
    made = calibration_key(
        get_config(str(checkpoint(MODEL)), trust_remote_code=False),
        device="x86_64",
        dtype=DTYPE,
        kv_cache_dtype="bfloat16",  # as the flag has it; the CPU platform's pool is exact all the same
        tp=ARM.tp_size,
        shard_source="process group",
    )
    write_cached(cp_from_100_tokens(made))
    return made


def bench_of_the_decision(*arguments):
    command = typer.Typer()
    command.command()(regret.main)
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_both_modes_serve_in_one_run_and_the_server_measures_anew(
    key, reference_of, checkpoint, tokens, logs, tmp_path
):
    reference = reference_of(MODEL, DTYPE)
    with running(ARM.spec(checkpoint(MODEL), DTYPE), logs) as server:

        def decisions():
            return server.info()["internal_states"][0]["sglang_cp_decisions"]

        prompts = [prompt for prompt in slices(tokens, LENGTHS) if len(prompt) <= 601]
        checks = [
            single(reference, server, prompts, on=lambda *_: None),
            batch(reference, server, slices(tokens, BATCH)),
        ]
        counters, before = server.cp_counters(), decisions()
        assert judge(ARM.name, checks, counters, expect_cp=True, tolerance=MAX_LOGPROB_NATS).problems == []
        assert set(before["tp"]) == {"fewer rows than ranks", "tp predicted not slower"}
        assert set(before["cp"]) == {"cp predicted faster"}
        assert before["cp"]["cp predicted faster"] == {"extends": counters["cp_extends"], "rows": counters["cp_rows"]}

        server.flush_cache()
        server.generate(input_ids=tokens[:101], sampling_params=greedy(1))
        server.flush_cache()
        server.generate(input_ids=tokens[1000:1102], sampling_params=greedy(1))
        after = decisions()
        assert after["tp"]["tp predicted not slower"]["rows"] == before["tp"]["tp predicted not slower"]["rows"] + 101
        assert after["cp"]["cp predicted faster"]["rows"] == before["cp"]["cp predicted faster"]["rows"] + 102

        server.flush_cache()  # waits until it is idle
        result = CliRunner().invoke(app, ["calibrate", "--url", server.url], env={"COLUMNS": "100"})
        assert result.exit_code == 0, result.output
        assert "128 │ " in result.output
        measured = read_cached(key)
        assert measured != cp_from_100_tokens(key)
        state = server.info()["internal_states"][0]
        assert "sglang_cp_calibrate" not in state
        assert state["sglang_cp_calibration"]["measured"]["coefficients"] == measured.coefficients
        judged = bench_of_the_decision("--url", server.url, "--small", "--rounds", "1", "--output", tmp_path / "times")
        assert judged.exit_code == 0, judged.output
        assert f"{len(small_grid())} extends" in judged.output
        assert "this is no verdict" in judged.output
        timed = {item.shape: item for item in read_times(tmp_path / "times")}
        assert list(timed) == small_grid()
        short, long = timed[ExtendShape.of([12])], timed[ExtendShape.of([192], [700])]
        assert long.tp_seconds > 2 * short.tp_seconds
        assert long.cp_seconds > 2 * short.cp_seconds
        assert server.info()["internal_states"][0]["sglang_cp_decisions"] == after  # measuring is not serving

        # SGLang ends a server that is idle while slots are missing from its pools, so it would not answer any more.
        assert ask(server, prompts[-1]).tokens == reference.answer(prompts[-1]).tokens

    (log,) = logs.glob(f"{ARM.name}-*.log")
    lines = log.read_text().splitlines()
    assert any("from an earlier start" in line and "from 102 new tokens on" in line for line in lines)
    assert any("extends measured on" in line and "took" in line for line in lines)
    prefills = [line for line in lines if "Prefill batch" in line]
    assert any("cp: 2 x 51 rows (cp 0.1 ms < tp 0.1 ms)" in line for line in prefills)
    assert any("tp (tp 0.1 ms <= cp 0.1 ms)" in line for line in prefills)
    assert any("tp (fewer rows than ranks)" in line for line in prefills)
