"""What ``--cp-attn-weights sharded`` needs of a launch, checked before any weight is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from sglang_cp.decision import AUTO
from sglang_cp.errors import UsageError
from sglang_cp.plugin import check_loaded, report_in_one_sentence

SUPPORTED_MODELS = ("GlmMoeDsaForCausalLM", "DeepseekV32ForCausalLM")
SUPPORTED_TP_SIZES = (2, 4, 8)


def check_server_args(server_args: Any) -> None:
    """Raise UsageError with one sentence per problem of an ``--enable-prefill-cp`` launch with sharded weights.

    Args:
        server_args: SGLang's ServerArgs after its own resolution.
    """
    report_in_one_sentence()
    check_loaded()
    problems = list(launch_problems(server_args))
    if problems:
        raise UsageError("--enable-prefill-cp cannot serve this launch. " + " ".join(problems))


def launch_problems(args: Any) -> Iterator[str]:
    """A sentence for each thing that CP with sharded weights cannot serve. ``args``: SGLang's ServerArgs, resolved."""
    replicated = "or --cp-attn-weights replicated for upstream's own CP"
    if args.cp_strategy is None:
        yield "--enable-prefill-cp needs --cp-strategy interleave."
    elif args.cp_strategy != "interleave":
        yield (
            f"--cp-strategy {args.cp_strategy} needs attention weights replicated on every rank: "
            f"use --cp-strategy interleave, {replicated}."
        )
    config = args.get_model_config().hf_config
    architecture = (config.architectures or ["unknown"])[0]
    if architecture not in SUPPORTED_MODELS:
        yield (
            f"{architecture} is not a DSA model that CP with sharded attention weights knows "
            f"({', '.join(SUPPORTED_MODELS)}): leave --enable-prefill-cp off, {replicated}."
        )
    if args.tp_size == 1:
        yield "--tp-size is 1: there are no ranks to deal the prompt to, leave --enable-prefill-cp off."
    elif args.tp_size not in SUPPORTED_TP_SIZES:
        yield f"--tp-size {args.tp_size} is not supported with CP: use one of {SUPPORTED_TP_SIZES}."
    elif config.num_attention_heads % args.tp_size:
        yield (
            f"{config.num_attention_heads} attention heads cannot be divided among --tp-size {args.tp_size} ranks: "
            "use a --tp-size that divides them."
        )
    if os.environ.get("SGLANG_ENABLE_CP_V2", "").lower() in ("0", "false", "no", "n"):
        yield "SGLANG_ENABLE_CP_V2 turns off the runner that CP with sharded weights needs: unset it."
    if args.cp_min_tokens != AUTO and fixed_min_tokens(args) is None:
        yield f"--cp-min-tokens is {args.cp_min_tokens}: give a number of new tokens of at least 1, or {AUTO}."
    if args.cp_shard_source == "symmetric-memory":
        if args.enable_memory_saver:
            yield (
                "--enable-memory-saver must be able to free the weights, and cannot free symmetric memory: "
                "leave --cp-shard-source at auto."
            )
        if args.nnodes > 1:
            yield f"--nnodes {args.nnodes}: symmetric memory ends at the host, leave --cp-shard-source at auto."
    if args.pp_size > 1:
        yield f"--pp-size {args.pp_size}: pipeline parallelism is not supported with CP, use --pp-size 1."
    view = args._resolved()
    if view.enable_dp_attention or args.dp_size > 1:
        yield "DP attention is not supported with CP: leave --enable-dp-attention off and --dp-size at 1."
    if view.attn_cp_size > 1:
        yield (
            f"--attn-cp-size {view.attn_cp_size} divides attention TP for the server's life, and CP with sharded "
            f"weights does so for one batch: leave it off, {replicated}."
        )
    if args.dcp_size > 1:
        yield "Decode context parallelism is not supported with prefill CP: leave --dcp-size at 1."
    if view.moe_a2a_backend not in (None, "none"):
        yield (
            f"--moe-a2a-backend {view.moe_a2a_backend} is not supported with CP: "
            "leave it off, the MoE stays tensor parallel."
        )
    if args.moe_dense_tp_size not in (None, args.tp_size):
        yield f"--moe-dense-tp-size {args.moe_dense_tp_size} is not supported with CP: leave it off."


def fixed_min_tokens(args: Any) -> int | None:
    """``--cp-min-tokens`` as a number, or None if it is no whole number of at least 1."""
    text = str(args.cp_min_tokens)
    return int(text) if text.isdecimal() and int(text) >= 1 else None


def unmeasurable_reasons(args: Any) -> list[str]:
    """Features with which extends cannot be measured outside of requests, named for the log."""
    features = {
        "speculative decoding": args.speculative_algorithm is not None,
        "prefill-decode disaggregation": args.disaggregation_mode != "null",
    }
    return [name for name, present in features.items() if present]


def plain_tp_reasons(args: Any) -> list[str]:
    """Features that work with the flag but keep every extend on plain TP, named for the log."""
    features = {
        "LoRA": args.enable_lora or bool(args.lora_paths),
        "two-batch overlap": args.enable_two_batch_overlap,
        "pdmux": args.enable_pdmux,
        "--enable-return-routed-experts": args.enable_return_routed_experts,
        "--enable-return-indexer-topk": args.enable_return_indexer_topk,
        "HiSparse": args.enable_hisparse,
    }
    return [name for name, present in features.items() if present]
