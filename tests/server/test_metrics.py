"""What Prometheus scrapes of a CP server agrees with its counters, its log and the traffic; then a rank is killed."""

import re
from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sglang.srt.utils.hf_transformers_utils import get_config

from evals.arms import Arm
from evals.checks import greedy
from evals.prompts import slices
from sglang_cp.calibration.cache import write_cached
from sglang_cp.calibration.key import calibration_key
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import Mode
from sglang_cp.metrics.definitions import METRICS, Name
from tests.calibration.examples import cp_from_100_tokens
from tests.server import ending_faults
from tests.server.conftest import MODELS
from tests.server.ended import faulty

TP_SIZE, DTYPE, CHUNK = 2, "float32", 256


@pytest.fixture(scope="module")
def calibration(checkpoint, tmp_path_factory):
    """The server's, by which extends of 102 new tokens and more are dealt out; cached where it looks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_CP_CACHE_DIR", str(tmp_path_factory.mktemp("calibration")))
        key = calibration_key(
            get_config(str(checkpoint("glm")), trust_remote_code=False),
            device="x86_64",
            dtype=DTYPE,
            kv_cache_dtype="bfloat16",
            tp=TP_SIZE,
            shard_source="process group",
        )
        made = cp_from_100_tokens(key)
        write_cached(made)
        yield made


@pytest.fixture(scope="module")
def started(calibration, checkpoint, logs):
    arm = Arm("metrics", TP_SIZE, "sharded", min_tokens="auto", chunk=CHUNK, mixed=True)
    spec = arm.spec(checkpoint("glm"), DTYPE)
    flags = ("--enable-metrics", "--enable-metrics-for-all-schedulers")
    with faulty(replace(spec, args=(*spec.args, *flags)), logs) as running_server:
        yield running_server


@pytest.fixture(scope="module")
def server(started):
    return started.server


class Scrape:
    """One look at /metrics."""

    def __init__(self, server):
        answer = httpx.get(f"{server.url}/metrics", timeout=60.0)
        self.families = {family.name: family for family in text_string_to_metric_families(answer.text)}

    def value(self, name, **labels):
        """Sum of the samples that have ``labels``."""
        family = self.families.get(re.sub(r"_(total|sum|count|bucket)$", "", name))
        samples = family.samples if family else ()
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


def changes(server, since, name, **labels):
    return Scrape(server).value(name, **labels) - since.value(name, **labels)


def ask(server, prompt, **sampling):
    server.generate(input_ids=prompt, sampling_params=greedy(sampling.get("tokens", 1)))


@pytest.fixture(scope="module")
def traffic(server, tokens):
    """Single prompts, a cached prefix, a prompt of three chunks, and a burst that mixes prefill and decode."""
    for prompt in slices(tokens, (1, 7, 101, 102, 200, 601)):
        ask(server, prompt)
    ask(server, tokens[:64])
    ask(server, tokens[:300])
    burst = slices(tokens[2000:], (5, 150, 80, 400))
    server.generate(input_ids=burst, sampling_params=[greedy(count) for count in (12, 2, 6, 3)])
    return Scrape(server)


def decisions(server):
    return server.info()["internal_states"][0]["sglang_cp_decisions"]


@pytest.mark.parametrize("rank", ["0", "1"])
def test_extends_and_tokens_are_the_servers_own_counts(traffic, server, rank):
    counted = decisions(server)
    assert counted["cp"]
    assert counted["tp"]
    for mode, by_reason in counted.items():
        for reason, tally in by_reason.items():
            labels = {"mode": mode, "reason": reason, "tp_rank": rank}
            assert traffic.value(Name.EXTENDS, **labels) == tally["extends"]
            assert traffic.value(Name.NEW_TOKENS, **labels) == tally["rows"]
        assert traffic.value(Name.EXTENDS, mode=mode, tp_rank=rank) == sum(t["extends"] for t in by_reason.values())


def test_ranks_share_the_rows_of_cp_extends_and_repeat_those_of_tp(traffic, server):
    counters, counted = server.cp_counters(), decisions(server)
    shares = [traffic.value(Name.RANK_ROWS + "_sum", mode="cp", tp_rank=rank) for rank in ("0", "1")]
    assert shares[0] == counters["cp_local_rows"]
    assert sum(shares) == counters["cp_rows"]
    repeated = sum(tally["rows"] for tally in counted["tp"].values())
    assert traffic.value(Name.RANK_ROWS + "_sum", mode="tp", tp_rank="1") == repeated


def test_every_cp_extend_pulls_the_other_ranks_shards_of_every_layer_once(traffic, server):
    config, latent = MODELS["glm"], 512
    q_b, o = config.heads * config.qk_head_dim * config.q_lora_rank, config.hidden * config.heads * config.v_head_dim
    absorbed = config.heads * latent * (config.qk_nope_head_dim + config.v_head_dim)
    missing = 4 * (q_b + o + absorbed) * (TP_SIZE - 1) // TP_SIZE
    expected = server.cp_counters()["cp_extends"] * config.layers * missing
    for rank in ("0", "1"):
        assert traffic.value(Name.PULLED_BYTES, tp_rank=rank) == expected


def test_times_are_of_every_extend_and_make_sense(traffic):
    extends = {mode: traffic.value(Name.EXTENDS, mode=mode, tp_rank="0") for mode in ("cp", "tp")}
    for name in (Name.EXTEND, Name.PREDICTED, Name.RATIO):
        counts = {mode: traffic.value(name + "_count", mode=mode, tp_rank="0") for mode in ("cp", "tp")}
        assert counts == extends
    assert traffic.value(Name.DECISION + "_count", tp_rank="0") == sum(extends.values())
    assert traffic.value(Name.PULL_EXPOSED + "_count", tp_rank="0") == extends["cp"]
    in_cp = traffic.value(Name.EXTEND + "_sum", mode="cp", tp_rank="0")
    assert 0 < traffic.value(Name.PULL_EXPOSED + "_sum", tp_rank="0") < in_cp
    assert 0 < traffic.value(Name.DECISION + "_sum", tp_rank="0") < 0.05 * in_cp


@pytest.mark.parametrize(("rows", "mode"), [(200, Mode.CP), (90, Mode.TP)])
def test_a_prediction_is_that_of_the_calibration(traffic, calibration, server, tokens, rows, mode):
    before = Scrape(server)
    ask(server, tokens[3000 + rows : 3000 + 2 * rows])
    predicted = calibration.to_fit().model.seconds(ExtendShape.of([rows]), mode)
    labels = {"mode": mode.value, "tp_rank": "0"}
    assert changes(server, before, Name.PREDICTED + "_sum", **labels) == pytest.approx(predicted)
    seconds = changes(server, before, Name.EXTEND + "_sum", **labels)
    assert changes(server, before, Name.RATIO + "_sum", **labels) == pytest.approx(seconds / predicted, rel=1e-3)


def test_they_stand_beside_sglangs_own_with_its_labels(traffic):
    theirs = traffic.families["sglang:num_running_reqs"].samples[0].labels
    for name in METRICS:
        family = traffic.families[name.removesuffix("_total")]
        assert family.documentation == METRICS[name].documentation
        for sample in family.samples:
            assert theirs.keys() <= sample.labels.keys()
            assert sample.labels["model_name"] == theirs["model_name"]


def test_every_prefill_line_of_the_log_says_how_it_ran(traffic, started, server):
    lines = [line for line in started.log.read_text().splitlines() if "Prefill batch" in line]
    told = [re.search(r", (?:cp: 2 x (\d+) rows|(tp)) \(([^()]+)\)$", line) for line in lines]
    assert all(told), lines
    counted = decisions(server)
    cp, tp = (sum(tally["extends"] for tally in counted[mode].values()) for mode in ("cp", "tp"))
    assert (sum(match[2] is None for match in told), sum(match[2] == "tp" for match in told)) == (cp, tp)


def test_a_killed_rank_ends_the_server(traffic, started):
    log = started.end_of(ending_faults.KILLED)
    noticed_by_its_peer = "another rank has ended: its own log says why, or the kernel's if it was killed."
    assert re.search(rf"{noticed_by_its_peer}|Subprocess scheduler_1 \(pid=\d+\) crashed with exit code -9", log)
    assert "SIGQUIT received" in log
