"""With CP on but not used, a server is as with CP off: weights, decode steps, and the pool but for two buffers."""

import pytest

from evals.arms import tiny_model
from evals.costs import ARMS, MODEL, PAGE_TOKENS, measure
from sglang_cp.weights.buffers import aligned

KV_BYTES_A_TOKEN = MODEL.layers * ((512 + 64) * 2 + 128 + 4)
"""As SGLang sizes the pool: BF16 latent, FP8 index key and its scale."""


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("costs")
    model = tiny_model(folder, MODEL)
    return {arm.name: measure(arm, model, folder) for arm in ARMS if arm.cp_weights != "replicated"}


def test_weights_stay_sharded(costs):
    assert costs["sharded"].weight_bytes == costs["CP off"].weight_bytes


def test_two_buffers_hold_a_layer_of_all_heads_each(costs):
    heads, head_dim, value_dim, latent = MODEL.heads, MODEL.qk_head_dim, MODEL.v_head_dim, 512
    q_b, o = heads * head_dim * MODEL.q_lora_rank, MODEL.hidden * heads * value_dim
    absorbed = heads * latent * MODEL.qk_nope_head_dim, heads * latent * value_dim
    assert costs["sharded"].buffer_bytes == 2 * sum(aligned(4 * count) for count in (q_b, o, *absorbed))


def test_the_pool_is_smaller_by_the_buffers_alone(costs):
    lost = costs["CP off"].pool_tokens - costs["sharded"].pool_tokens
    buffers_tokens = costs["sharded"].buffer_bytes / KV_BYTES_A_TOKEN
    assert lost % PAGE_TOKENS == 0
    assert abs(lost - buffers_tokens) < PAGE_TOKENS, (lost, buffers_tokens)


def test_a_decode_step_executes_the_same_operations(costs):
    off, sharded = costs["CP off"].decode_calls, costs["sharded"].decode_calls
    assert len(off) == len(sharded) == 2
    for rank in range(2):
        assert sharded[rank] == off[rank]
    heads_a_rank = MODEL.heads // 2
    assert any(f", {heads_a_rank}, 576):float32" in call for call in off[0]), "the trace does not show the heads"
    assert costs["sharded"].decode_collectives == costs["CP off"].decode_collectives > 2 * MODEL.layers - 1


def test_the_rows_of_an_extend_take_no_more_memory_than_plain_tp(costs):
    assert costs["sharded"].extend_peak_bytes <= costs["CP off"].extend_peak_bytes
