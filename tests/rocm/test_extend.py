"""One CP extend on the ROCm path against plain TP: what kernels are given, in which order, and what comes out."""

import pytest
import torch

from sglang_cp.layout import TokenLayout
from tests.rocm.geometry import (
    EXTENDS,
    HEADS,
    HIDDEN,
    INDEX_DIM,
    INDEX_HEADS,
    LATENT,
    NOPE,
    PREFIXES,
    Q_LORA,
    ROPE,
    ROWS,
    TOPK,
    TP,
    V_HEAD,
    new_rows,
    slots,
)

PATHS = [(backend, kv_cache) for backend in ("aiter", "tilelang") for kv_cache in ("bfloat16", "fp8_e4m3")]
RANKS = range(TP)
ATTENTION = {"aiter": "mla_decode_fwd", "tilelang": "tilelang_sparse_fwd"}
LAYOUTS = [TokenLayout(ROWS, TP, rank) for rank in RANKS]


@pytest.fixture(params=PATHS, ids="-".join)
def path(request):
    return request.param


@pytest.fixture
def tp(record, path):
    return record["arms"][path]["tp"]


@pytest.fixture
def cp(record, path):
    return record["arms"][path]["cp"]


def calls(run, kernel):
    return [call for call in run.calls if call.kernel == kernel]


def call(run, kernel):
    (only,) = calls(run, kernel)
    return only


def test_both_arms_give_the_same_rows(tp, cp):
    # Not to the bit: of BF16 terms summed in another order. Rows are of magnitude 1.
    complete = sum(run.output.float() for run in tp)
    for layout, run in zip(LAYOUTS, cp, strict=True):
        torch.testing.assert_close(run.output[: layout.local_rows].float(), layout.own(complete), atol=0.05, rtol=0.05)


def test_every_rank_caches_what_plain_tp_caches(path, tp, cp):
    one_step = 2**-3 if path[1] == "fp8_e4m3" else 2**-7
    for run in cp:
        torch.testing.assert_close(run.latents, tp[0].latents, atol=0.02, rtol=one_step)
        different = (run.index_keys != tp[0].index_keys).float().mean()
        assert different < 1e-3  # a rounding of a BF16 key at most, of 8 bits each
    assert tp[0].latents[slots()].abs().sum(-1).min() > 0


def test_top_k_drops_keys(cp):
    for run in cp:
        assert call(run, "topk").tensors["lengths"].max() > TOPK


def test_attention_has_16_heads_of_all_rows_under_tp_and_all_heads_of_own_rows_in_a_cp_extend(path, tp, cp):
    kernel = ATTENTION[path[0]]
    assert {call(run, kernel).tensors["q"].shape for run in tp} == {(ROWS, HEADS // TP, LATENT + ROPE)}
    padded = LAYOUTS[0].padded_rows
    assert {call(run, kernel).tensors["q"].shape for run in cp} == {(padded, HEADS, LATENT + ROPE)}


def test_aiter_gets_one_list_of_keys_a_row_and_none_for_a_padding_row(cp, path):
    if path[0] == "tilelang":
        for layout, run in zip(LAYOUTS, cp, strict=True):
            chosen = (call(run, "tilelang_sparse_fwd").tensors["indices"].squeeze(1) >= 0).sum(-1)
            assert chosen.tolist() == layout.pad(layout.own(keys_of_rows())).tolist()
        return
    for layout, run in zip(LAYOUTS, cp, strict=True):
        tensors = call(run, "mla_decode_fwd").tensors
        assert tensors["qo_indptr"].tolist() == list(range(layout.padded_rows + 1))
        assert tensors["kv_indptr"].diff().tolist() == layout.pad(layout.own(keys_of_rows())).tolist()


def keys_of_rows():
    """[ROWS]: how many keys each row attends to."""
    return (new_rows() + 1).clamp(max=TOPK)


def test_keys_are_gathered_and_stored_at_the_full_cache_locations_in_token_order(cp):
    for run in cp:
        index_key = call(run, "indexer_k_quant_and_cache").tensors
        assert index_key["key"].shape[0] == ROWS
        assert torch.equal(index_key["slots"], slots())
        latent = call(run, "set_mla_kv_buffer").tensors
        assert latent["k_nope"].shape == (ROWS, 1, LATENT)
        assert latent["k_rope"].shape == (ROWS, 1, ROPE)
        assert torch.equal(latent["slots"], slots())


def test_gathered_latents_are_dense(cp):
    for run in cp:
        latent = call(run, "set_mla_kv_buffer").tensors
        assert latent["k_nope"].stride() == (LATENT, LATENT, 1)
        assert latent["k_rope"].stride() == (ROPE, ROPE, 1)


def test_each_row_is_rotated_by_its_own_position_where_it_is(cp):
    for layout, run in zip(LAYOUTS, cp, strict=True):
        own = layout.pad(layout.own(new_rows()))
        of_indexer, of_attention = calls(run, "rope")
        for rope in (of_indexer, of_attention):
            assert torch.equal(rope.tensors["positions"], own)
            assert rope.tensors["positions"].stride() == (1,)
            assert rope.tensors["query"].shape[0] == rope.tensors["key"].shape[0] == layout.padded_rows
        assert of_attention.tensors["query"].shape[1] == HEADS


def test_the_fused_rope_and_cache_kernel_serves_plain_tp_only(path, tp, cp):
    fused = "fused_qk_rope_cat_and_cache_mla"
    for run in tp:
        assert len(calls(run, fused)) == (path[0] == "tilelang")
        for launched in calls(run, fused):
            assert torch.equal(launched.tensors["slots"], slots())
            assert torch.equal(launched.tensors["positions"], new_rows())
    assert not any(calls(run, fused) for run in cp)


def test_rows_are_rotated_before_they_are_gathered_and_gathered_before_they_are_stored(path, cp):
    steps = [
        "rope",  # of the indexer
        "all_gather",
        "indexer_k_quant_and_cache",
        "fp8_mqa_logits",
        "topk",
        "rope",  # of the attention
        "all_gather",
        "set_mla_kv_buffer",
        ATTENTION[path[0]],
    ]
    for run in cp:
        assert [call.kernel for call in run.calls if call.kernel in steps] == steps


def test_own_rows_are_scored_against_every_key_of_their_request(cp):
    seq_lens = [prefix + new for prefix, new in zip(PREFIXES, EXTENDS, strict=True)]
    starts = torch.cat([torch.full((EXTENDS[0],), 0), torch.full((EXTENDS[1],), seq_lens[0])])
    for layout, run in zip(LAYOUTS, cp, strict=True):
        tensors = call(run, "fp8_mqa_logits").tensors
        assert tensors["q"].shape[0] == layout.local_rows
        assert tensors["kv"].shape[0] == sum(seq_lens)
        assert torch.equal(tensors["ks"].long(), layout.own(starts))
        assert torch.equal(tensors["ke"].long(), layout.own(starts + new_rows() + 1))


def test_fp8_work_is_planned_for_the_heads_and_rows_at_hand(record):
    arms = record["arms"]["aiter", "fp8_e4m3"]
    for run, heads, rows in [(run, 16, ROWS) for run in arms["tp"]] + [(run, HEADS, 6) for run in arms["cp"]]:
        plan = call(run, "get_mla_metadata_v1")
        assert plan.other == {"num_heads": heads, "buffer_rows": rows}
        assert torch.equal(plan.tensors["kv_indptr"], call(run, "mla_decode_fwd").tensors["kv_indptr"])


def test_o_proj_shards_are_multiplied_one_by_one_and_q_b_at_once(tp, cp):
    others = [INDEX_HEADS * INDEX_DIM, INDEX_DIM, INDEX_HEADS]
    for runs, heads, o_projs in ((tp, HEADS // TP, 1), (cp, HEADS, TP)):
        for run in runs:
            gemms = calls(run, "tgemm.mm")
            assert [gemm.other["rows"] for gemm in gemms] == [
                Q_LORA + LATENT + ROPE,
                heads * (NOPE + ROPE),
                *others,
                *[HIDDEN] * o_projs,
            ]
            for gemm in gemms[-o_projs:]:
                assert gemm.tensors["x"].shape[1] == HEADS // TP * V_HEAD
                assert gemm.tensors["x"].is_contiguous()
