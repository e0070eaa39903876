"""The transcription agrees with itself: figures that follow from others do."""

import pytest

from sglang_cp.errors import UsageError
from sglang_cp.planner import published as module
from sglang_cp.planner.arms import Arm
from sglang_cp.planner.published import load_set
from tests.planner.sets import H200, published

ROWS = {row.input_tokens: row for row in published().single_stream}
BOTH = (Arm.OFF, Arm.REPLICATED)


@pytest.mark.parametrize("row", published().single_stream, ids=lambda row: str(row.input_tokens))
def test_additive_identity(row):
    """E2E = TTFT + (n - 1) x TPOT, so saving - (n - 1) x penalty is what a request gains. Printed to 1 ms and 1 us."""
    steps = row.output_tokens - 1
    assert steps * row.tpot_penalty_ms == pytest.approx(row.decode_penalty_ms, abs=0.5 + steps * 0.0005)
    gained = row.ttft_saving_ms - steps * row.tpot_penalty_ms
    assert gained == pytest.approx(row.net_saving_ms, abs=1 + steps * 0.0005)


@pytest.mark.parametrize("row", [ROWS[40960], ROWS[61440]], ids=lambda row: str(row.input_tokens))
def test_additive_identity_against_the_measured_throughput(row):
    """E2E from throughput gives the same gain, and the penalty a token that was printed."""
    e2e = {arm: row.e2e_seconds(arm, 4) for arm in BOTH}
    assert (e2e[Arm.OFF] - e2e[Arm.REPLICATED]) * 1e3 == pytest.approx(row.net_saving_ms, abs=0.6)
    tpot = {arm: row.tpot_seconds(arm, 4) for arm in BOTH}
    for arm in BOTH:
        assert row.ttft_seconds(arm) + 511 * tpot[arm] == pytest.approx(e2e[arm], rel=5e-5)
    assert (tpot[Arm.REPLICATED] - tpot[Arm.OFF]) * 1e3 == pytest.approx(row.tpot_penalty_ms, abs=0.001)


def test_medians_over_random_lengths_add_up_to_4_percent_only():
    row = ROWS[1928]
    for arm in BOTH:
        added = row.ttft_seconds(arm) + 280 * row.tpot_seconds(arm, 4)
        assert added == pytest.approx(row.e2e_s[arm], rel=0.04)
        assert row.ttft_seconds(arm) == pytest.approx(row.ttft_s[arm], abs=0.0003)


def test_finer_times_are_within_the_rounding_of_those_printed():
    for row in (ROWS[40960], ROWS[61440]):
        for arm in BOTH:
            assert row.ttft_seconds(arm) == pytest.approx(row.ttft_s[arm], abs=0.005)


def points(*lengths):
    return {(n, c): p for n in lengths for c, p in published().points(n, 512).items()}


def test_the_effects_that_the_post_prints():
    printed = {
        1024: {4: -18.3, 8: -9.4, 16: -14.7, 32: -13.7, 48: -10.3},
        4096: {4: -7.5, 8: -0.6, 16: 4.7, 32: 8.5, 48: 2.8},
        40960: {1: 4.1, 4: 27.4, 8: 37.9, 16: 43.1, 20: 46.9, 24: 46.5, 32: 44.1},
        61440: {1: 11.4, 4: 38.7, 8: 30.8, 16: 54.1, 20: 45.9, 24: 53.3, 32: 48.3},
    }
    effects = {key: point.effect * 100 for key, point in points(*printed).items()}
    assert effects == pytest.approx({(n, c): e for n, row in printed.items() for c, e in row.items()}, abs=0.051)


def test_the_first_token_speedups_that_the_post_prints():
    printed = {
        40960: {1: 1.48, 4: 1.60, 8: 1.52, 16: 1.67, 20: 1.56, 24: 1.65, 32: 1.59},
        61440: {1: 1.53, 4: 1.90, 8: 2.26, 16: 1.59, 20: 2.04, 24: 1.66, 32: 1.54},
    }
    speedups = {key: point.ttft_s[Arm.OFF] / point.ttft_s[Arm.REPLICATED] for key, point in points(*printed).items()}
    assert speedups == pytest.approx({(n, c): e for n, row in printed.items() for c, e in row.items()}, abs=0.006)


def test_interactivity_is_output_tokens_over_e2e():
    anchors = [point for point in points(1024, 4096, 40960, 61440).values() if point.interactivity_tok_s]
    assert len(anchors) == 13
    for point in anchors:
        for arm in BOTH:
            assert 512 / point.e2e_s[arm] == pytest.approx(point.interactivity_tok_s[arm], abs=0.1 + 0.003 * 163)


def test_pool_bytes_a_token_are_those_of_the_geometry():
    """A BF16 latent of 512 + 64 and an index key of 128 bytes with a 4-byte scale, in each layer, on both machines."""
    for name in (None, H200):
        data = published(name) if name else published()
        assert data.memory.bytes_per_token == pytest.approx(data.model.layers * (2 * 576 + 132), rel=0.005)


def test_gathered_weights_of_a_layer_are_297_mb():
    assert published().model.layer_weight_bytes == pytest.approx(297e6, rel=0.005)


def test_a_single_stream_row_without_throughput_is_a_point_by_the_identity():
    point = published(H200).points(4096, 33)[1]
    assert point.total_tok_s_per_gpu[Arm.OFF] == pytest.approx(4129 / (2 * (0.0582 + 32 * 2.06e-3)))
    assert published().points(1928, 281) == {}


def test_an_unknown_set_is_refused_with_the_names_of_the_others():
    with pytest.raises(UsageError, match=f"no published set h100: use one of {H200}, glm-5.2-mxfp4-mi355x-tp4"):
        load_set("h100")


def test_a_damaged_set_is_refused(monkeypatch):
    monkeypatch.setattr(module.tomllib, "loads", lambda text: {"title": "x"})
    with pytest.raises(UsageError, match="is damaged"):
        load_set(H200)
