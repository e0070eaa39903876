"""Head padding, top-k v2, SGLang's own CP, the NextN layer and the Triton kernels on the ROCm path."""

import pytest
import torch


def test_eight_heads_are_not_padded_where_aiter_has_a_kernel_for_them_and_the_operator_asks(record):
    heads = {(r["kv_cache"], r["no_pad"], r["gfx95"]): r["kernel_heads"] for r in record["eight_heads"]}
    native = {key for key, (extend, decode) in heads.items() if extend == decode == 8}
    assert native == {("bfloat16", True, True)}
    assert all(heads[key] == [16, 16] for key in heads.keys() - native)


def test_eight_heads_get_the_same_attention_padded_or_not(record):
    for case in record["eight_heads"]:
        for output in case["outputs"]:
            torch.testing.assert_close(output, case["expected"], atol=0.01, rtol=0.01)


def test_dsa_models_do_not_use_topk_v2(record):
    assert record["topk_v2"] is False


def test_static_cp_rotates_before_the_gather_too(record):
    assert record["static_cp"]["tp_is_fused"]
    assert not record["static_cp"]["cp_is_fused"]


def test_the_position_of_a_rank_with_one_row_has_the_stride_that_aiter_wants(record):
    assert record["static_cp"]["one_row"] == [([30 + rank], (1,)) for rank in range(4)]


@pytest.mark.parametrize(
    ("checkpoint", "quantized"),
    [("glm_bf16", False), ("glm_fp4", True), ("deepseek_bf16", False), ("deepseek_fp4", True)],
)
def test_nextn_layer_is_quantized_as_its_checkpoint_is(record, checkpoint, quantized):
    assert record["nextn"][checkpoint] is quantized


def test_k_is_concatenated_for_sizes_that_are_no_power_of_two(record):
    for k, expected in record["kernels"]["concatenated"]:
        heads = expected.shape[1]
        assert torch.equal(k[:, :heads], expected)
        assert k[:, heads:].isnan().all()  # nothing is written past the last head


def test_a_tile_of_zeros_is_stored_as_zeros(record):
    stored, latent = record["kernels"]["stored"], record["kernels"]["latent"].squeeze(1).float()
    values = stored[:, :512].view(torch.float8_e4m3fn).float().unflatten(1, (4, 128))
    assert torch.equal(values[1, 1], torch.zeros(128))
    largest = latent.unflatten(1, (4, 128)).abs().amax(-1)
    torch.testing.assert_close(stored[:, 512:].view(torch.float32), (largest / 448).clamp_min(1e-12), rtol=1e-6, atol=0)
    assert (values.abs().amax(-1) == 448).sum() == 11  # every other tile uses FP8's whole range


def test_valid_indices_are_packed(record):
    assert record["kernels"]["indices"] == [5, 7, 9, 4, 3]
