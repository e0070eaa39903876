"""Server arguments on the CPU reference platform: defaults for what was not given, refusals for what cannot be."""

from __future__ import annotations

from typing import Any

from sglang_cp.cpu_reference.settings import Mode, SettingsError, nominal_memory_bytes, resolve_mode

# A small pool: upstream would otherwise reserve most of the host's memory for it.
_MAX_TOTAL_TOKENS = 32768
# Upstream derives it from the device's memory; a reference should chunk alike on every host (a Hopper GPU's value).
_CHUNKED_PREFILL_SIZE = 8192

_ONLY = {
    "attention_backend": "dsa",
    "prefill_attention_backend": "dsa",
    "decode_attention_backend": "dsa",
    "dsa_prefill_backend": "flashmla_sparse",
    "dsa_decode_backend": "flashmla_sparse",
    "sampling_backend": "pytorch",
}
_DEFAULTED = ("attention_backend", "dsa_prefill_backend", "dsa_decode_backend", "sampling_backend")


def apply(server_args: Any) -> Mode:
    """Complete `server_args` in place and return the mode.

    Raises SettingsError, and leaves the arguments as they were, when one of them cannot be served.
    """
    mode = resolve_mode(server_args.dtype)
    nominal_memory_bytes()  # refused here, not when the pool is sized
    _refuse_unsupported(server_args)

    server_args.dtype = mode.dtype
    for name in _DEFAULTED:
        if getattr(server_args, name) is None:
            setattr(server_args, name, _ONLY[name])
    if server_args.kv_cache_dtype == "auto":
        server_args.kv_cache_dtype = "bfloat16"
    if server_args.max_total_tokens is None:
        server_args.max_total_tokens = _MAX_TOTAL_TOKENS
    if server_args.chunked_prefill_size is None:
        server_args.chunked_prefill_size = _CHUNKED_PREFILL_SIZE
    server_args.disable_custom_all_reduce = True
    server_args.sleep_on_idle = True  # an idle rank would otherwise keep a CPU busy
    _disable_graphs(server_args)
    return mode


def _refuse_unsupported(server_args: Any) -> None:
    if server_args.device != "cpu":
        raise SettingsError(
            f"The CPU reference platform serves --device cpu only, but --device {server_args.device} was given."
        )
    for name, only in _ONLY.items():
        given = getattr(server_args, name)
        if given not in (None, only):
            flag = "--" + name.replace("_", "-")
            raise SettingsError(
                f"The CPU reference platform has no {flag} {given}: use {flag} {only}, or leave it off."
            )
    if server_args.kv_cache_dtype not in ("auto", "bf16", "bfloat16"):
        raise SettingsError(
            f"The CPU reference platform has no --kv-cache-dtype {server_args.kv_cache_dtype}: leave it off (the mode "
            "decides: BF16 latents when faithful, float32 when exact)."
        )
    if server_args.dsa_paged_mqa_logits_backend not in ("auto", "deepgemm"):
        raise SettingsError(
            "The CPU reference platform has no --dsa-paged-mqa-logits-backend "
            f"{server_args.dsa_paged_mqa_logits_backend}: use deepgemm, or leave it off."
        )
    if server_args.dsa_topk_backend == "flashinfer":
        raise SettingsError(
            "The CPU reference platform has no --dsa-topk-backend flashinfer: use sgl-kernel, or leave it off."
        )
    if (server_args.speculative_algorithm or "EAGLE").upper() not in ("EAGLE", "NEXTN"):
        raise SettingsError(
            f"The CPU reference platform has no --speculative-algorithm {server_args.speculative_algorithm}: use EAGLE "
            "with a model that has a NextN layer, or leave it off."
        )
    if server_args.speculative_use_rejection_sampling:
        raise SettingsError(
            "The CPU reference platform has no kernel for --speculative-use-rejection-sampling: leave it off."
        )
    if server_args.enable_torch_compile:
        raise SettingsError("The CPU reference platform runs eagerly: drop --enable-torch-compile.")


def _disable_graphs(server_args: Any) -> None:
    from sglang.srt.model_executor.cuda_graph_config import Backend

    server_args.cuda_graph_config.decode.backend = Backend.DISABLED
    server_args.cuda_graph_config.prefill.backend = Backend.DISABLED
