"""`python -m tests.rocm.record OUT`: what SGLang's ROCm path does on this CPU, for the tests to look at (torch.save).

One process for everything, since most of its time goes into importing SGLang.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from tests.rocm import fake_hip, fake_kernels
from tests.rocm.geometry import BACKENDS, KV_CACHES, LATENT, ROPE, TP, forward_batch
from tests.rocm.one_layer import Layer, Run

EIGHT = 8
"""Ranks of GLM-5.x's 64 heads that leave 8 heads a rank."""


def arms(layer: Layer) -> dict[tuple[str, str], dict[str, list[Run]]]:
    """(backend, cache format) -> arm -> what each rank did."""
    runs = {}
    for backend in BACKENDS:
        for kv_cache in KV_CACHES:
            layer.configure(backend, kv_cache)
            runs[backend, kv_cache] = {"tp": layer.plain_tp(), "cp": layer.cp_extend()}
    return runs


def eight_heads(layer: Layer) -> list[dict[str, Any]]:
    """The aiter backend with 8 heads a rank, with and without SGLANG_DSA_NO_PAD_HEADS."""
    from sglang.srt.environ import envs
    from sglang.srt.layers.attention import dsa_backend

    results = []
    for kv_cache in KV_CACHES:
        for no_pad, gfx95 in ((False, True), (True, True), (True, False)):
            layer.configure("aiter", kv_cache)
            with envs.SGLANG_DSA_NO_PAD_HEADS.override(no_pad), mock.patch.object(dsa_backend, "_IS_GFX95", gfx95):
                results.append(
                    {"kv_cache": kv_cache, "no_pad": no_pad, "gfx95": gfx95, **_extend_and_decode(layer.backend(EIGHT))}
                )
    return results


def _extend_and_decode(backend: Any) -> dict[str, Any]:
    heads, rows = 64 // EIGHT, 2
    layer = SimpleNamespace(
        tp_q_head_num=heads, head_dim=LATENT + ROPE, v_head_dim=LATENT, scaling=0.06, logit_cap=0.0, layer_id=0
    )
    q = torch.randn(rows, heads, LATENT + ROPE, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    slots = torch.tensor([[64, 65, 66, -1], [64, -1, 71, 67]], dtype=torch.int32)
    cache = backend.token_to_kv_pool.get_key_buffer(0)
    metadata = SimpleNamespace(cu_seqlens_q=torch.arange(rows + 1, dtype=torch.int32), max_seq_len_q=1)
    fake_kernels.CALLS.clear()
    outputs = (
        backend._forward_aiter_extend(q, cache, slots, layer),
        backend._forward_aiter(q, cache, slots, layer, metadata, rows),
    )
    expected = [
        fake_kernels.attend(q[row], cache.squeeze(1).float()[chosen[chosen >= 0].long()], layer.scaling, LATENT)
        for row, chosen in enumerate(slots)
    ]
    return {
        "kernel_heads": [c.tensors["q"].shape[1] for c in fake_kernels.CALLS if c.kernel == "mla_decode_fwd"],
        "outputs": [output.view(rows, heads, LATENT).float() for output in outputs],
        "expected": torch.stack(expected),
    }


def static_cp(layer: Layer) -> dict[str, Any]:
    """SGLang's own CP (`--cp-attn-weights replicated`) where a patch touches it."""
    from sglang.srt.layers.utils.cp_utils import cp_split_and_rebuild_position

    attention, batch = layer.attention[0], forward_batch()
    layer.configure("tilelang", "bfloat16")
    attention.current_attention_backend = "dsa"
    facts = {"tp_is_fused": attention._skip_rope_for_dsa_tilelang_fused(batch)}
    batch.attn_cp_metadata = SimpleNamespace()
    layer.args.__dict__.update(enable_dsa_prefill_context_parallel=True, dsa_prefill_cp_mode="round-robin-split")
    facts["cp_is_fused"] = attention._skip_rope_for_dsa_tilelang_fused(batch)
    facts["one_row"] = []
    for rank in range(TP):
        with layer.parallel.override(attn_cp_size=TP, attn_cp_rank=rank):
            positions = cp_split_and_rebuild_position(batch, torch.arange(TP) + 30)
        facts["one_row"].append((positions.tolist(), positions.stride()))
    layer.args.__dict__.update(enable_dsa_prefill_context_parallel=False)
    return facts


def nextn_is_quantized(exclude: list[str], num_hidden_layers: int) -> bool:
    """Whether SGLang builds the NextN layer of a Quark MXFP4 checkpoint with that ``exclude`` as quantized."""
    from sglang.srt.layers.quantization.quark.quark import QuarkConfig
    from sglang.srt.models import deepseek_nextn

    quark = QuarkConfig({"exclude": exclude, "packed_modules_mapping": {}})
    model = deepseek_nextn.DeepseekV3ForCausalLMNextN
    quark.apply_weight_name_mapper(model.hf_to_sglang_mapper)  # as the loader does
    config = SimpleNamespace(num_hidden_layers=num_hidden_layers, architectures=[], vocab_size=8, hidden_size=8)
    no_module = mock.Mock(return_value=torch.nn.Identity())
    with (
        mock.patch.multiple(
            deepseek_nextn,
            DeepseekModelNextN=no_module,
            ParallelLMHead=no_module,
            LogitsProcessor=no_module,
            get_pp_group=mock.Mock(),
        ),
        mock.patch.object(model, "determine_num_fused_shared_experts"),
    ):
        model(config, quark)
    return no_module.call_args_list[0].args[1] is not None


def nextn() -> dict[str, bool]:
    glm = [f"model.layers.{layer}.self_attn.o_proj" for layer in range(79)] + ["lm_head"]
    return {
        "glm_bf16": nextn_is_quantized([*glm, "model.layers.78.eh_proj", "model.layers.78.mlp.experts.0.up_proj"], 78),
        "glm_fp4": nextn_is_quantized(glm, 78),
        "deepseek_bf16": nextn_is_quantized(["model.layers.61"], 61),
        "deepseek_fp4": nextn_is_quantized(["lm_head"], 61),
    }


def kernels() -> dict[str, Any]:
    """Triton kernels in the interpreter, with what they should give."""
    from sglang.srt.layers.attention.dsa.quant_k_cache import quantize_k_cache_separate
    from sglang.srt.layers.attention.dsa.triton_kernel import get_valid_kv_indices
    from sglang.srt.layers.attention.triton_ops.cache_ops import concat_and_cast_mha_k_triton

    torch.manual_seed(2)
    concatenated = []
    for heads, nope, rope in ((16, 192, 64), (12, 128, 64), (12, 192, 48), (16, 128, 64)):
        k_nope, k_rope = torch.randn(3, heads, nope + 8)[..., :nope], torch.randn(3, 1, rope)
        k = torch.full((3, heads + 1, nope + rope), float("nan"))
        concat_and_cast_mha_k_triton(k[:, :heads], k_nope, k_rope)
        concatenated.append((k, torch.cat([k_nope, k_rope.expand(-1, heads, -1)], -1)))

    latent = torch.randn(3, 1, LATENT).to(torch.bfloat16)
    latent[1, 0, 128:256] = 0
    stored, _ = quantize_k_cache_separate(latent, torch.randn(3, 1, ROPE).to(torch.bfloat16))

    table = torch.tensor([[5, -1, 7, 9], [-1, -1, -1, -1], [4, 3, -1, -1]], dtype=torch.int32)
    indptr = torch.tensor([0, 3, 3, 5], dtype=torch.int32)
    indices = torch.zeros(12, dtype=torch.int32)
    get_valid_kv_indices(table, indptr, indices, 3)
    return {
        "concatenated": concatenated,
        "latent": latent,
        "stored": stored.squeeze(1),
        "indices": indices[:5].tolist(),
    }


def main(out: Path) -> None:
    fake_hip.pretend(fake_kernels.FAKES)
    layer = Layer()
    fake_hip.imports_are_done()
    from sglang.srt.environ import envs

    record = {
        "arms": arms(layer),
        "eight_heads": eight_heads(layer),
        "static_cp": static_cp(layer),
        "nextn": nextn(),
        "kernels": kernels(),
        "topk_v2": envs.SGLANG_OPT_USE_TOPK_V2.get(),
    }
    torch.save(record, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
