"""Which forwards the strategy deals out, and what it falls back for; with SGLang's own classes around it."""

import contextlib
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput

from sglang_cp import strategy as strategy_module
from sglang_cp.cost.calibration import Calibration, CalibrationKey, MeasuredExtend
from sglang_cp.cost.terms import TERMS, Mode
from sglang_cp.counters import Counters
from sglang_cp.decision import Decision
from sglang_cp.extend import CPExtend
from sglang_cp.layout import TokenLayout
from sglang_cp.strategy import PerBatchInterleaveStrategy

TP_SIZE = 4


def server_args(**changes):
    features = dict.fromkeys(
        (
            "enable_lora",
            "lora_paths",
            "enable_two_batch_overlap",
            "enable_pdmux",
            "enable_return_routed_experts",
            "enable_return_indexer_topk",
            "enable_hisparse",
        )
    )
    settings = {
        "tp_size": TP_SIZE,
        "cp_min_tokens": 8,
        "cp_shard_source": "auto",
        "cp_row_collectives": "process-group",
    }
    return SimpleNamespace(**{**settings, **features, **changes})


def batch(**changes):
    fields = {
        "forward_mode": ForwardMode.EXTEND,
        "extend_seq_lens_cpu": [3, 5],
        "seq_lens_cpu": [3, 9],
        "input_ids": range(8),
        "global_num_tokens_cpu": None,
        "can_run_tbo": False,
        "input_embeds": None,
        "replace_embeds": None,
        "attn_cp_metadata": None,
        "spec_info": None,
        "needs_forward_metadata_init": lambda: True,
    }
    return SimpleNamespace(**{**fields, **changes})


class Placement:
    source_name, shard_bytes, buffer_bytes = "a test's", 1, 2

    def __init__(self, model, group, device, **kwargs):
        self.device, self.kwargs = device, kwargs
        self.begun = 0

    def begin(self):
        self.begun += 1


@pytest.fixture
def model_runner():
    return SimpleNamespace(
        model=None,
        tp_group=SimpleNamespace(ranks=list(range(TP_SIZE)), cpu_group="the ranks' CPU group"),
        device="cpu",
        gpu_id=3,
        server_args=SimpleNamespace(enable_memory_saver=False),
        memory_saver_adapter=SimpleNamespace(region=lambda tag: contextlib.nullcontext(tag)),
        model_config=SimpleNamespace(hf_config=SimpleNamespace(index_topk=4)),
    )


@pytest.fixture
def make(monkeypatch, model_runner):
    """A function from ServerArgs changes to a strategy on rank 1 of a loaded model."""

    def get(**changes):
        monkeypatch.setattr(strategy_module, "ShardedAttention", Placement)
        monkeypatch.setattr(strategy_module, "check_loaded", lambda: None)
        monkeypatch.setattr(PerBatchInterleaveStrategy, "cp_rank", 1)
        strategy = PerBatchInterleaveStrategy(server_args(**changes))
        strategy.on_model_loaded(model_runner)
        return strategy

    return get


def test_a_long_extend_is_dealt_out(make):
    assert make().can_apply(8, batch())
    assert make().can_apply(8, batch(forward_mode=ForwardMode.MIXED))


@pytest.mark.parametrize(
    "changes",
    [
        {"forward_mode": ForwardMode.DECODE},
        {"forward_mode": ForwardMode.TARGET_VERIFY},
        {"forward_mode": ForwardMode.DRAFT_EXTEND_V2},
        {"forward_mode": ForwardMode.IDLE},
        {"extend_seq_lens_cpu": [3, 4], "input_ids": range(7)},  # under the threshold
        {"input_ids": range(12)},  # padded
        {"global_num_tokens_cpu": [8]},
        {"can_run_tbo": True},
        {"input_embeds": object()},
        {"replace_embeds": object()},
        {"seq_lens_cpu": None},
        {"needs_forward_metadata_init": lambda: False},
    ],
)
def test_every_other_forward_is_plain_tp(make, changes):
    other = batch(**changes)
    assert not make().can_apply(len(other.input_ids), other)
    assert not make().blocks_prefill_graph(other)


def test_a_draft_models_extend_is_plain_tp_and_leaves_the_targets_decision(make):
    """It has the target's lengths, and runs after the target's extend, before that one's decision is taken."""
    strategy = make()
    strategy.can_apply(8, batch())
    draft = batch(spec_info=EagleDraftExtendInput())
    assert not strategy.can_apply(8, draft)
    assert not strategy.blocks_prefill_graph(draft)
    decision, _ = strategy.take_latest()
    assert decision.context_parallel


def test_the_decision_stands_once_it_is_on_the_batch(make):
    decided = batch(
        attn_cp_metadata=CPExtend(TokenLayout(8, TP_SIZE, 1), None, None), needs_forward_metadata_init=lambda: False
    )
    assert make().can_apply(8, decided)


class Counting:
    """A policy that counts how often it is asked."""

    def __init__(self, *, context_parallel):
        self.asked, self.context_parallel = 0, context_parallel

    def decide(self, extend_lens, prefix_lens):
        self.asked += 1
        return Decision(self.context_parallel, "a test's")


@pytest.mark.parametrize("context_parallel", [True, False])
def test_a_batch_is_decided_once_however_often_it_is_asked_and_whatever_ran_between(make, context_parallel):
    strategy = make()
    strategy._policy = policy = Counting(context_parallel=context_parallel)
    first, other = batch(), batch()
    for _ in range(3):
        assert strategy.can_apply(8, first) is context_parallel
        assert strategy.blocks_prefill_graph(first) is context_parallel
    assert policy.asked == 1
    strategy._policy = Counting(context_parallel=not context_parallel)  # `sglang-cp calibrate` between two batches
    assert strategy.can_apply(8, other) is not context_parallel
    assert strategy.can_apply(8, first) is context_parallel
    first.needs_forward_metadata_init = lambda: False  # its attention is planned
    assert strategy.can_apply(8, first) is context_parallel


def test_sglangs_own_batch_keeps_its_decision_and_a_copy_is_decided_anew(make):
    strategy = make()
    strategy._policy = policy = Counting(context_parallel=True)
    own = ForwardBatch.__new__(ForwardBatch)
    vars(own).update({field.name: None for field in fields(ForwardBatch)})
    own.forward_mode, own.extend_seq_lens_cpu, own.seq_lens_cpu = ForwardMode.EXTEND, [3, 5], [3, 9]
    own.forward_metadata_ready = False
    assert strategy.can_apply(8, own)
    assert strategy.can_apply(8, own)
    assert policy.asked == 1
    assert strategy.can_apply(8, replace(own))  # what the eager runner runs
    assert policy.asked == 2


def test_a_batch_that_was_padded_since_is_another(make):
    padded = batch()
    assert make().can_apply(8, padded)
    padded.input_ids = range(12)
    assert not make().can_apply(12, padded)


@pytest.mark.parametrize("feature", ["enable_lora", "enable_two_batch_overlap", "enable_pdmux", "enable_hisparse"])
def test_features_without_cp_keep_the_server_on_plain_tp(make, feature):
    strategy = make(**{feature: True})
    assert not strategy.can_apply(8, batch())
    assert not strategy.blocks_prefill_graph(batch())


def calibration(**coefficients):
    key = CalibrationKey(
        device="d", model={}, dtype="float32", kv_cache_dtype="float32", tp=TP_SIZE, shard_source="s", versions={}
    )
    measured = [MeasuredExtend(extend_lens=[8], prefix_lens=[0], mode=mode, seconds=1.0) for mode in ("tp", "cp")]
    return Calibration(
        key=key,
        index_topk=4,
        pull_seconds=0.0,
        host_seconds={},
        coefficients={**dict.fromkeys(TERMS, 0.0), **coefficients},
        measurements=measured,
    )


def test_with_auto_a_calibration_decides_by_new_tokens_and_prefixes(make):
    strategy = make(cp_min_tokens="auto")
    assert not strategy.can_apply(8, batch())  # not measured yet: the default threshold
    # The batch's second request adds 5 rows to 4 cached tokens: 6 + 35 pairs, of which CP scores a quarter a rank.
    strategy.adopt(calibration(launch_cp=1.0, scoring=1.01 / (41 * 3 / 4)))
    assert strategy.can_apply(8, batch())
    strategy.adopt(calibration(launch_cp=1.0, scoring=0.99 / (41 * 3 / 4)))
    assert not strategy.can_apply(8, batch())


def test_a_number_stays_a_fixed_threshold_whatever_is_measured(make):
    strategy = make(cp_min_tokens="8")
    strategy.adopt(calibration(launch_cp=1.0))
    assert strategy.can_apply(8, batch())
    assert strategy.calibration == calibration(launch_cp=1.0)


def test_a_mode_can_be_forced_for_what_can_be_dealt_out(make, monkeypatch):
    counters = Counters()
    monkeypatch.setattr(strategy_module, "COUNTERS", counters)
    strategy = make(cp_min_tokens=9)
    with strategy.forced(Mode.CP):
        assert strategy.can_apply(8, batch())
        assert not strategy.can_apply(8, batch(forward_mode=ForwardMode.DECODE))
        strategy.build_metadata(8, [3, 9], [3, 5])
    assert counters == Counters()
    assert strategy.take_latest() is None
    short = make(cp_min_tokens=8)
    with short.forced(Mode.TP):
        assert not short.can_apply(8, batch())
    assert short.can_apply(8, batch())


def test_each_extends_decision_is_taken_once_and_no_decode_has_one(make):
    strategy = make()
    strategy.blocks_prefill_graph(batch())
    strategy.can_apply(8, batch())
    decided = batch(attn_cp_metadata=CPExtend(TokenLayout(8, TP_SIZE, 1), None, None))
    strategy.can_apply(8, decided)
    decision, rows = strategy.take_latest()
    assert (str(decision), rows) == ("8 >= 8", 8)
    strategy.can_apply(2, batch(forward_mode=ForwardMode.DECODE))
    assert strategy.take_latest() is None


def test_nothing_is_dealt_out_before_the_model_is_loaded():
    assert not PerBatchInterleaveStrategy(server_args()).can_apply(8, batch())


def test_metadata_is_counted_and_starts_the_first_pull(make, monkeypatch):
    counters = Counters()
    monkeypatch.setattr(strategy_module, "COUNTERS", counters)
    strategy = make()
    extend = strategy.build_metadata(8, [3, 9], [3, 5])
    assert extend.layout == TokenLayout(8, TP_SIZE, 1)
    assert extend.per_batch
    assert strategy._placement.begun == 1
    # The second request's rows see 5 to 9 keys, more than the top-k of 4.
    assert counters.as_dict() == {"cp_extends": 1, "cp_rows": 8, "cp_local_rows": 2, "cp_rows_over_topk": 5}


def test_the_weights_stay_on_their_own_gpu(make, model_runner):
    model_runner.device = "cuda"
    assert make(cp_shard_source="process-group")._placement.device == torch.device("cuda", 3)


def test_a_server_that_can_release_its_weights_releases_the_buffers_with_them(make, model_runner):
    assert make()._placement.kwargs["memory_saver"] is None
    model_runner.server_args.enable_memory_saver = True
    with make()._placement.kwargs["memory_saver"] as tag:
        assert tag == "weights"


def test_the_agreement_check_hears_of_every_extend_and_of_nothing_else(make, monkeypatch):
    said = []
    monkeypatch.setenv("SGLANG_CP_CHECK_AGREEMENT", "1")
    monkeypatch.setattr(
        strategy_module.agreement, "AgreementCheck", lambda ranks: SimpleNamespace(check=lambda what: said.append(what))
    )
    strategy = make()
    long = batch()
    strategy.can_apply(8, long)
    strategy.can_apply(8, long)  # compared once
    strategy.can_apply(12, batch(input_ids=range(12)))
    strategy.can_apply(2, batch(forward_mode=ForwardMode.DECODE))
    assert said == ["CP (8 >= 8) for new tokens [3, 5]", "plain TP (padded batch) for new tokens [3, 5]"]


def test_rows_go_by_the_group_until_something_is_chosen_before_serving(make, monkeypatch):
    chosen, asked = SimpleNamespace(name="a test's", num_bytes=3), []
    monkeypatch.setattr(strategy_module, "choose_rows", lambda *about: asked.append(about) or chosen)
    strategy = make()
    by_group = strategy.rows
    assert by_group.name == "process group"
    strategy.choose_rows()
    assert strategy.rows is strategy.build_metadata(8, [3, 9], [3, 5])._rows is chosen
    assert asked == [("process-group", by_group, None, "the ranks' CPU group", torch.device("cpu"))]
    strategy.choose_rows()
    assert len(asked) == 1
