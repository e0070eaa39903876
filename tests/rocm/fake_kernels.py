"""Kernels of aiter, sgl-kernel and tilelang in torch; each call is recorded, and what the real one insists on holds.

Sources of the contracts: aiter's rotary_embedding.py, mla.py, ops/cache.py and fused_kv_cache.py
(github.com/ROCm/aiter) and their call sites in SGLang.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from sglang_cp.cpu_reference.kernels import hadamard, scoring
from sglang_cp.cpu_reference.kernels import topk as topk_kernels
from sglang_cp.cpu_reference.kernels.quant import FP8, IndexedCpuTensor, quantize


@dataclass
class Call:
    """One kernel launch."""

    kernel: str
    tensors: dict[str, torch.Tensor]
    """Arguments as the kernel got them: copies with the same strides."""
    other: dict[str, Any] = field(default_factory=dict)


CALLS: list[Call] = []


def record(kernel: str, other: dict[str, Any] | None = None, **tensors: torch.Tensor) -> None:
    CALLS.append(Call(kernel, {name: _copy(tensor) for name, tensor in tensors.items()}, other or {}))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.as_subclass(torch.Tensor).as_strided((span if tensor.numel() else 0,), (1,)).clone()
    return memory.as_strided(tensor.shape, tensor.stride())


# aiter: norms and dense products.


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + epsilon)
    return (x.float() * scale * weight.float()).to(x.dtype)


def fused_qk_rmsnorm(*, q_out_quantized, k_out, q, q_weight, q_epsilon, k, k_weight, k_epsilon, quant_type) -> None:
    record("fused_qk_rmsnorm", q=q, k=k)
    q_out_quantized.copy_(rms_norm(q, q_weight, q_epsilon))
    k_out.copy_(rms_norm(k, k_weight, k_epsilon))


def layernorm2d_fwd(x, weight, bias, epsilon):
    return torch.nn.functional.layer_norm(x.float(), x.shape[-1:], weight.float(), bias.float(), epsilon).to(x.dtype)


class TunedGemm:
    def mm(self, x, weight, bias, otype):
        record("tgemm.mm", {"rows": weight.shape[0]}, x=x)
        assert bias is None
        return (x.float() @ weight.float().T).to(otype)


# aiter: RoPE. The real kernels want `positions` as [1, rows] with a last stride of 1, which a one-row view may lack.


class AiterRope:
    """Interleaved (GPT-J) RoPE; query and key are rotated in place, as aiter's default backend does."""

    is_neox_style = False

    def __init__(self, head_size, rotary_dim, max_position, base, is_neox_style, *_: Any) -> None:
        assert not is_neox_style
        assert head_size == rotary_dim
        self.head_size = head_size
        frequencies = base ** (-torch.arange(0, head_size, 2).float() / head_size)
        angles = torch.outer(torch.arange(max_position).float(), frequencies)
        self.cos_cache = angles.cos().to(torch.bfloat16)[:, None, None]
        self.sin_cache = angles.sin().to(torch.bfloat16)[:, None, None]

    def __call__(self, positions, query, key):
        rows = positions.numel()
        record("rope", {"head_size": self.head_size}, positions=positions, query=query, key=key)
        assert positions.view(1, rows).stride(-1) == 1
        for x in (query.view(1, rows, -1, self.head_size), key.view(1, rows, -1, self.head_size)):
            x[0].copy_(rotate(x[0], positions, self.cos_cache, self.sin_cache))
        return query, key


def rotate(x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """[rows, heads, d] by each row's own position."""
    cos, sin = (cache[positions].view(len(positions), 1, -1).float() for cache in (cos, sin))
    even, odd = x[..., ::2].float(), x[..., 1::2].float()
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2).to(x.dtype)


def fused_qk_rope_cat_and_cache_mla(
    q_nope, q_pe, k_nope, k_pe, kv_cache, slot_mapping, positions, cos, sin, k_scale, is_neox, q_out_dtype
):
    """Rotates q and k by one `positions`, stores k at `slot_mapping`, returns q as one tensor."""
    record("fused_qk_rope_cat_and_cache_mla", q_nope=q_nope, k_nope=k_nope, slots=slot_mapping, positions=positions)
    assert not is_neox
    assert q_nope.shape[0] == k_nope.shape[0] == slot_mapping.shape[0] == positions.shape[0], (
        "rows of q, k, slots differ"
    )
    k_pe = rotate(k_pe, positions, cos, sin)
    kv_cache[slot_mapping] = torch.cat([k_nope, k_pe], -1).to(kv_cache.dtype)
    q = torch.cat([q_nope, rotate(q_pe, positions, cos, sin)], -1).to(q_out_dtype)
    return q, None, k_pe, None


# The indexer.


def act_quant(x, block_size, scale_fmt):
    record("act_quant", x=x)
    values, scale = quantize(x, block_size, round_scale_up_to_power_of_two=scale_fmt is not None)
    return values.as_subclass(IndexedCpuTensor), scale


def indexer_k_quant_and_cache(key, kv_cache, slots, block_size, scale_fmt, preshuffle):
    """Quantizes and stores [rows, 128]: as many rows as there are slots."""
    record("indexer_k_quant_and_cache", {"preshuffle": preshuffle}, key=key, slots=slots)
    assert key.is_contiguous()
    assert slots.is_contiguous()
    assert key.shape[0] == slots.shape[0], "rows of key and slots differ"
    values, scales = quantize(key, 128, round_scale_up_to_power_of_two=True)
    rows = kv_cache.view(torch.uint8)
    rows[slots // 64, slots % 64] = torch.cat([values.view(torch.uint8), scales.view(torch.uint8)], -1)


def cp_gather_indexer_k_quant_cache(kv_cache, dst_k, dst_scale, page_indices, cu_seq_lens, preshuffle):
    record("cp_gather_indexer_k_quant_cache", pages=page_indices, cu_seq_lens=cu_seq_lens)
    rows = kv_cache.view(torch.uint8)
    for request, pages in enumerate(page_indices.tolist()):
        begin, end = cu_seq_lens[request : request + 2].tolist()
        stored = torch.cat([rows[page] for page in pages])[: end - begin]
        dst_k.view(torch.uint8)[begin:end] = stored[:, :128]
        dst_scale[begin:end] = stored[:, 128:]


def fp8_mqa_logits(q, kv, kv_scales, weights, ks, ke, clean_logits):
    record("fp8_mqa_logits", q=q, kv=kv.view(torch.uint8), weights=weights, ks=ks, ke=ke)
    assert q.shape[0] == weights.shape[0] == ks.shape[0] == ke.shape[0], "rows of q, weights, ks, ke differ"
    assert int(ke.max()) <= kv.shape[0], "a row wants keys that are not there"
    return scoring.fp8_mqa_logits(q, (kv, kv_scales), weights, ks, ke)


def fast_topk_transform_fused(score, lengths, page_table_size_1, cu_seqlens_q, topk, row_starts=None):
    record("topk", lengths=lengths, cu_seqlens_q=cu_seqlens_q)
    return topk_kernels.fast_topk_transform_fused(score, lengths, page_table_size_1, cu_seqlens_q, topk, row_starts)


# Sparse attention.


def attend(q: torch.Tensor, keys: torch.Tensor, sm_scale: float, v_head_dim: int) -> torch.Tensor:
    """[heads, 576] over [keys, 576] -> [heads, 512]; of no keys at all, what a kernel leaves: NaN."""
    scores = (q.float() @ keys.float().T) * sm_scale
    if not keys.shape[0]:
        return torch.full((q.shape[0], v_head_dim), float("nan"))
    return torch.softmax(scores, -1) @ keys.float()[:, :v_head_dim]


def mla_decode_fwd(
    q,
    kv_buffer,
    o,
    qo_indptr,
    kv_indptr,
    kv_indices,
    kv_last_page_lens,
    max_seqlen_q,
    *,
    sm_scale,
    logit_cap,
    q_scale,
    kv_scale,
    **persistent,
):
    other = {"persistent": sorted(persistent), "max_seqlen_q": max_seqlen_q}
    record("mla_decode_fwd", other, q=q, o=o, qo_indptr=qo_indptr, kv_indptr=kv_indptr, kv_indices=kv_indices)
    assert q.is_contiguous()
    assert o.is_contiguous()
    assert q.shape[0] == qo_indptr.shape[0] - 1 == o.shape[0]
    if kv_buffer.dtype == FP8:
        assert persistent, "an FP8 cache is served by the persistent kernel"
        assert q.shape[1] % 16 == 0, "there is no kernel for a BF16 query of 8 heads and an FP8 cache"
    keys = kv_buffer.flatten(0, 2).float()
    for row in range(q.shape[0]):
        chosen = kv_indices[kv_indptr[row] : kv_indptr[row + 1]].long()
        o[row] = attend(q[row], keys[chosen], sm_scale, o.shape[-1]).to(o.dtype)


def tilelang_sparse_fwd(q, kv, indices, sm_scale, d_v):
    record("tilelang_sparse_fwd", q=q, indices=indices)
    assert q.shape[0] == indices.shape[0], "rows of q and indices differ"
    keys = kv.squeeze(1).float()
    q = q.to(kv.dtype)
    rows = [
        attend(q[row].float(), keys[chosen[chosen >= 0].long()], sm_scale, d_v)
        for row, chosen in enumerate(indices.squeeze(1))
    ]
    return torch.stack(rows).to(torch.bfloat16)


def get_mla_metadata_info_v1(batch_size, max_seqlen_q, num_heads, q_dtype, kv_dtype, **_: Any):
    CALLS.append(Call("get_mla_metadata_info_v1", {}, {"batch_size": batch_size, "num_heads": num_heads}))
    assert num_heads % 16 == 0
    return [((batch_size,), torch.int32)] * 6


def get_mla_metadata_v1(qo_indptr, kv_indptr, last_page_lens, num_heads, *buffers: Any, **_: Any):
    other = {"num_heads": num_heads, "buffer_rows": buffers[2].shape[0]}
    record("get_mla_metadata_v1", other, qo_indptr=qo_indptr, kv_indptr=kv_indptr, last_page_lens=last_page_lens)


FAKES: dict[str, Any] = {
    "aiter.layernorm2d_fwd": layernorm2d_fwd,
    "aiter.get_mla_metadata_info_v1": get_mla_metadata_info_v1,
    "aiter.get_mla_metadata_v1": get_mla_metadata_v1,
    "aiter.mla.mla_decode_fwd": mla_decode_fwd,
    "aiter.rotary_embedding.get_rope": AiterRope,
    "aiter.tuned_gemm.tgemm": TunedGemm(),
    "aiter.ops.cache.indexer_k_quant_and_cache": indexer_k_quant_and_cache,
    "aiter.ops.cache.cp_gather_indexer_k_quant_cache": cp_gather_indexer_k_quant_cache,
    "aiter.ops.fused_qk_rmsnorm_group_quant.fused_qk_rmsnorm": fused_qk_rmsnorm,
    "aiter.ops.triton.fused_kv_cache.fused_qk_rope_cat_and_cache_mla": fused_qk_rope_cat_and_cache_mla,
    "aiter.ops.triton.fp8_mqa_logits.fp8_mqa_logits": fp8_mqa_logits,
    "sgl_kernel.fast_topk_transform_fused": fast_topk_transform_fused,
    "fast_hadamard_transform.hadamard_transform": hadamard.hadamard_transform,
    # SGLang's own module of tilelang kernels, which cannot be imported without tilelang.
    "sglang.srt.layers.attention.dsa.tilelang_kernel.act_quant": act_quant,
    "sglang.srt.layers.attention.dsa.tilelang_kernel.tilelang_sparse_fwd": tilelang_sparse_fwd,
}
