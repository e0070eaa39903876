"""What the platform puts in place of upstream's GPU code: the whole list, with the reason for each entry.

Kernels are replaced under the names upstream imports; its control flow runs unchanged. Three ways to put something in
place, in order of preference:

HOOK, AROUND  through upstream's HookRegistry, which also updates modules that imported the name.
BIND  by setting one module's name: kernels launched as `kernel[grid](...)`, which a hook's function wrapper would
      break, and per-module flags, which must not change elsewhere.
ADD   as BIND, for a name that upstream defines on a GPU only.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from sglang_cp.cpu_reference import memory, shims
from sglang_cp.cpu_reference.kernels import (
    activations,
    dense,
    fp8,
    fused_indexer,
    hadamard,
    index_pages,
    launch,
    mxfp4,
    quant,
    scoring,
    speculative,
    symmetric_memory,
    topk,
)

_SRT = "sglang.srt."
_DSA = "sglang.srt.layers.attention.dsa."
_INDEXER = _DSA + "dsa_indexer."
_BACKEND = "sglang.srt.layers.attention.dsa_backend."
_POOL = "sglang.srt.mem_cache."
_SPEC = "sglang.srt.speculative."
_SPEC_SLOTS = "sglang.srt.speculative.triton_ops.cache_locs."
_QUANT = "sglang.srt.layers.quantization."
_MXFP4 = "sglang.srt.layers.quantization.quark.schemes.quark_w4a4_mxfp4."


class How(enum.Enum):
    HOOK = "hook"
    AROUND = "around"
    BIND = "bind"
    ADD = "add"


@dataclass(frozen=True)
class Replacement:
    """One name of upstream's (or torch's) and what stands in its place."""

    target: str
    substitute: Any
    why: str
    how: How = How.HOOK


REPLACEMENTS: tuple[Replacement, ...] = (
    # The DSA indexer and backend take the branch they take on a Hopper GPU.
    Replacement(_INDEXER + "_is_cuda", True, "the CUDA branches of Indexer.forward_cuda", How.BIND),
    Replacement(_INDEXER + "deep_gemm", scoring, "index scoring; imported on CUDA only", How.ADD),
    Replacement(_BACKEND + "is_cuda", shims.yes, "builds the paged-scoring schedule, as on CUDA", How.BIND),
    Replacement(_BACKEND + "deep_gemm", scoring, "the schedule; imported on CUDA only", How.ADD),
    Replacement(
        "torch.cuda.get_device_capability",
        shims.hopper_capability,
        "server_args.py, arg_groups/overrides.py and dsa_backend.py choose DSA defaults by it",
        How.BIND,
    ),
    Replacement(
        "torch.cuda.current_stream",
        shims.current_stream,
        "dsa_indexer.py, deepseek_v2.py and forward_mla.py pass the stream on to context-parallel gathers",
        How.BIND,
    ),
    Replacement("torch.cuda.synchronize", shims.synchronize, "deepseek_v2.py, after embeddings are shared", How.BIND),
    Replacement("torch.Tensor.record_stream", shims.record_stream, "overlap_utils.py; wants a GPU's stream", How.BIND),
    # Index queries and keys.
    Replacement(_DSA + "triton_kernel.act_quant", quant.act_quant, "Triton"),
    Replacement("sglang.jit_kernel.hadamard.hadamard_transform", hadamard.hadamard_transform, "JIT CUDA"),
    Replacement(_INDEXER + "can_use_dsa_fused_store", index_pages.can_use_dsa_fused_store, "compiles CUDA", How.BIND),
    Replacement(_INDEXER + "fused_store_index_k_cache", index_pages.fused_store_index_k_cache, "JIT CUDA", How.BIND),
    Replacement(
        _INDEXER + "fused_q_indexer_rope_first_quant",
        fused_indexer.fused_q_indexer_rope_first_quant,
        "JIT CUDA; imported on CUDA only",
        How.ADD,
    ),
    Replacement(
        _INDEXER + "fused_k_indexer_norm_rope",
        fused_indexer.fused_k_indexer_norm_rope,
        "JIT CUDA; imported on CUDA only",
        How.ADD,
    ),
    Replacement(
        _INDEXER + "fused_k_indexer_norm_rope_store",
        fused_indexer.fused_k_indexer_norm_rope_store,
        "JIT CUDA; imported on CUDA only",
        How.ADD,
    ),
    Replacement(_DSA + "index_buf_accessor._set_k_and_s_triton", index_pages._set_k_and_s_triton, "Triton"),
    Replacement(_DSA + "index_buf_accessor._get_k_triton", index_pages._get_k_triton, "Triton"),
    Replacement(_DSA + "index_buf_accessor._get_s_triton", index_pages._get_s_triton, "Triton"),
    Replacement(_DSA + "index_buf_accessor._get_k_and_s_triton", index_pages._get_k_and_s_triton, "Triton"),
    Replacement(
        _INDEXER + "Indexer.__init__",
        shims.projection_in_mode_dtype,
        "creates a BF16 projection, which exact mode's activations cannot enter",
        How.AROUND,
    ),
    Replacement(
        _INDEXER + "Indexer._weights_proj_bf16_in_fp32_out",
        shims.weights_proj_in_float32,
        "torch.mm with out_dtype is CUDA only",
    ),
    Replacement(
        _INDEXER + "Indexer._get_mqa_logits_budget_bytes",
        shims.mqa_logits_budget_bytes,
        "asks the GPU for its free memory",
    ),
    # Dense products: accumulated in float64.
    Replacement("torch.nn.functional.linear", dense.linear, "a GEMM's sums depend on the number of rows", How.BIND),
    Replacement("torch.bmm", dense.bmm, "as above; forward_mla absorbs w_kc and w_vc with it", How.BIND),
    Replacement("torch.matmul", dense.matmul, "as above; the LM head", How.BIND),
    # Elementwise functions whose last bit depends on an element's place in its tensor.
    Replacement("torch.Tensor.sigmoid", activations.sigmoid, "the router's scores", How.BIND),
    Replacement("torch.sigmoid", activations.sigmoid, "as above", How.BIND),
    Replacement("torch.nn.functional.silu", activations.silu, "gates of dense layers and shared experts", How.BIND),
    Replacement(
        _SRT + "layers.quantization.unquant.UnquantizedLinearMethod.apply",
        dense.apply_linear,
        "keeps a row-parallel layer's part of a sum in float64",
        How.AROUND,
    ),
    Replacement(
        _SRT + "layers.moe.fused_moe_native.moe_forward_native",
        dense.fused_moe,
        "keeps a rank's part of the experts' sum in float64",
    ),
    Replacement(_SRT + "layers.layernorm.RMSNorm.forward_native", dense.rms_norm, "rounds a complete sum", How.AROUND),
    # Quantized linear layers: block FP8, Quark FP8 with a scale for each channel, Quark MXFP4.
    Replacement(_QUANT + "fp8_kernel.per_token_group_quant_fp8", fp8.per_token_group_quant_fp8, "Triton"),
    Replacement(_QUANT + "fp8_kernel.w8a8_block_fp8_matmul_triton", fp8.w8a8_block_fp8_matmul_triton, "Triton"),
    Replacement(_QUANT + "fp8_kernel.scaled_fp8_quant", fp8.scaled_fp8_quant, "JIT CUDA"),
    Replacement(
        _QUANT + "fp8_utils._apply_fallback_scaled_mm",
        fp8.apply_fallback_scaled_mm,
        "torch._scaled_mm, whose sums depend on the number of rows",
    ),
    Replacement(_MXFP4 + "dynamic_mxfp4_quant", mxfp4.dynamic_mxfp4_quant, "aiter; imported on ROCm only", How.ADD),
    Replacement(_MXFP4 + "gemm_afp4wfp4", mxfp4.gemm_afp4wfp4, "aiter; imported on ROCm only", How.ADD),
    Replacement(
        _MXFP4 + "gemm_afp4wfp4_pre_quant", mxfp4.gemm_afp4wfp4_pre_quant, "aiter; imported on ROCm only", How.ADD
    ),
    Replacement(
        _QUANT + "fp8.Fp8LinearMethod.apply", dense.apply_quantized_linear, "as for unquantized layers", How.AROUND
    ),
    Replacement(
        _QUANT + "quark.quark.QuarkLinearMethod.apply",
        dense.apply_quantized_linear,
        "as for unquantized layers",
        How.AROUND,
    ),
    Replacement(
        _MXFP4 + "QuarkW4A4MXFP4.apply_weights", dense.apply_mxfp4_linear, "as for unquantized layers", How.AROUND
    ),
    Replacement(
        _QUANT + "quark.quark.get_device_capability",
        shims.hopper_capability,
        "Quark asks whether the GPU has FP8",
        How.BIND,
    ),
    Replacement(
        _SRT + "models.deepseek_common.deepseek_weight_loader._is_cuda",
        True,
        "block FP8 kv_b_proj becomes BF16, as on CUDA",
        How.BIND,
    ),
    Replacement(
        _SRT + "models.deepseek_common.attention_forward_methods.forward_mla._is_cpu",
        True,
        "FP8 w_kc and w_vc: as upstream multiplies them on ROCm; its CUDA kernel scales a whole batch",
        How.BIND,
    ),
    # Top-k and page tables.
    Replacement("sglang.jit_kernel.dsv4.topk.plan_topk_v2", topk.plan_topk_v2, "JIT CUDA"),
    Replacement("sglang.jit_kernel.dsv4.topk.topk_transform_512_v2", topk.topk_transform_512_v2, "JIT CUDA"),
    Replacement(
        _DSA + "transform_index.transform_index_page_table_decode_fast",
        shims.page_table_decode,
        "Triton, index_topk 2048 only; with SGLANG_DSA_FUSE_TOPK=0",
    ),
    Replacement(
        _DSA + "transform_index.transform_index_page_table_prefill_fast",
        shims.page_table_prefill,
        "Triton, index_topk 2048 only; with SGLANG_DSA_FUSE_TOPK=0",
    ),
    Replacement(
        _DSA + "utils.dsa_cp_round_robin_split_q_seqs_kernel",
        launch.Launch(launch.round_robin_split_q_seqs),
        "Triton",
        How.BIND,
    ),
    # KV pool and its allocator.
    Replacement(_POOL + "triton_ops.mla_buffer.set_mla_kv_buffer_triton", launch.set_mla_kv_buffer_triton, "Triton"),
    Replacement(_POOL + "allocator.paged.alloc_extend_kernel", launch.Launch(launch.alloc_extend), "Triton", How.BIND),
    Replacement(_POOL + "allocator.paged.alloc_decode_kernel", launch.Launch(launch.alloc_decode), "Triton", How.BIND),
    Replacement(_POOL + "common.get_last_loc", shims.get_last_loc, "Triton; upstream's own torch twin"),
    Replacement(
        _SRT + "utils.common.support_triton", shims.no, "positions and cache indices: upstream's own torch twins"
    ),
    # Sampling.
    Replacement(
        _SRT + "constrained.xgrammar_backend.XGrammarGrammar.apply_vocab_mask",
        shims.apply_vocab_mask,
        "Triton; xgrammar has a CPU kernel of its own",
    ),
    # Speculative decoding.
    Replacement(_SPEC + "eagle_utils._is_cuda", True, "verification's CUDA branch", How.BIND),
    Replacement(
        _SPEC + "eagle_utils.sgl_build_tree_kernel_efficient",
        speculative.build_tree_kernel_efficient,
        "sgl_kernel; imported on GPUs only",
        How.ADD,
    ),
    Replacement(
        _SPEC + "eagle_worker_v2.fill_bonus_tokens",
        launch.Launch(speculative.fill_bonus_tokens),
        "Triton",
        How.BIND,
    ),
    Replacement(_SPEC_SLOTS + "_is_cuda", True, "the branch that calls the next ones", How.BIND),
    *(
        Replacement(_SPEC_SLOTS + twin.__name__, launch.Launch(twin), "Triton", How.BIND)
        for twin in (
            speculative.assign_req_to_token_pool,
            speculative.assign_extend_cache_locs,
            speculative.assign_draft_cache_locs_contiguous,
        )
    ),
    Replacement(_SPEC + "triton_ops.gather_spec_extras.gather_spec_extras", speculative.gather_spec_extras, "Triton"),
    Replacement(_SRT + "layers.attention.triton_ops.pad.seqlens_expand_triton", speculative.seqlens_expand, "Triton"),
    # Devices, memory, threads, process groups.
    Replacement(
        _SRT + "utils.common.get_available_gpu_memory",
        memory.available_memory,
        "the host's free memory moves; a nominal device's does not",
        How.AROUND,
    ),
    Replacement("torch.distributed._symmetric_memory.empty", symmetric_memory.empty, "GPU only", How.BIND),
    Replacement("torch.distributed._symmetric_memory.rendezvous", symmetric_memory.rendezvous, "GPU only", How.BIND),
    Replacement(
        _SRT + "server_args.ServerArgs._handle_cpu_backends",
        shims.handle_cpu_backends,
        "would put Intel AMX attention in the place of an unset backend",
    ),
    Replacement(
        _SRT + "layers.rotary_embedding.factory.get_rope_cpu",
        shims.get_rope_cpu,
        "knows deepseek_yarn only; upstream's get_rope knows all",
    ),
    Replacement(
        _SRT + "configs.update_config.adjust_config_with_unaligned_cpu_tp",
        shims.unchanged_config,
        "pads dimensions for Intel AMX; elsewhere upstream expects the checkpoint's",
    ),
    Replacement(
        _SRT + "model_executor.model_runner.ModelRunner.init_threads_binding",
        shims.init_threads,
        "wants a NUMA node a rank",
    ),
    Replacement(
        _SRT + "model_executor.forward_batch_info.torch",
        shims.TorchWithoutPinnedMemory(),
        "prepare_mlp_sync_batch pins a tensor",
        How.BIND,
    ),
    Replacement(
        _SRT + "distributed.parallel_state.init_model_parallel_group",
        shims.gloo_only,
        "would create NCCL communicators beside the gloo groups",
        How.AROUND,
    ),
)
