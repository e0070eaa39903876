"""GLM-5.2's geometry at tp 4, a batch of two requests, and the server that would serve them."""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

TP = 4
HEADS, HIDDEN, Q_LORA, LATENT, NOPE, ROPE, V_HEAD = 64, 6144, 2048, 512, 192, 64, 256
INDEX_HEADS, INDEX_DIM, TOPK = 32, 128, 8
PAGE, PAGES = 64, 4
PREFIXES, EXTENDS = (0, 8), (13, 9)
"""Cached and new rows of two requests: 22 new rows, so that two of the ranks own 5 and pad to 6."""
ROWS = sum(EXTENDS)
PAGE_OF_REQUEST = (2, 1)
BACKENDS, KV_CACHES = ("aiter", "tilelang"), {"bfloat16": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn}


def new_rows(offset: tuple[int, ...] = (0, 0)) -> torch.Tensor:
    """[ROWS]: the position of each new row, plus its request's offset."""
    return torch.cat([torch.arange(n) + prefix + o for n, prefix, o in zip(EXTENDS, PREFIXES, offset, strict=True)])


def slots() -> torch.Tensor:
    """[ROWS]: the cache location of each new row, in token order."""
    return new_rows(tuple(page * PAGE for page in PAGE_OF_REQUEST))


def page_table() -> torch.Tensor:
    """[requests, PAGE]: the slot of each position."""
    return (torch.tensor(PAGE_OF_REQUEST)[:, None] * PAGE + torch.arange(PAGE)).to(torch.int32)


def forward_batch() -> Any:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    seq_lens = torch.tensor(PREFIXES) + torch.tensor(EXTENDS)
    return SimpleNamespace(
        forward_mode=ForwardMode.EXTEND,
        batch_size=len(EXTENDS),
        input_ids=torch.zeros(ROWS, dtype=torch.int64),
        positions=new_rows(),
        out_cache_loc=slots(),
        req_pool_indices=torch.arange(len(EXTENDS)),
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens,
        seq_lens_sum=int(seq_lens.sum()),
        extend_num_tokens=ROWS,
        extend_seq_lens=torch.tensor(EXTENDS),
        extend_seq_lens_cpu=list(EXTENDS),
        extend_prefix_lens_cpu=list(PREFIXES),
        spec_info=None,
        attn_cp_metadata=None,
        global_num_tokens_cpu=None,
        get_max_chunk_capacity=lambda: 0,
    )


def server_args() -> Any:
    """SGLang's arguments for a GLM-5.2 server on four MI355X, resolved by SGLang itself."""
    from sglang.srt.server_args import ServerArgs

    config = {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "dtype": "bfloat16",
        "num_attention_heads": HEADS,
        "hidden_size": HIDDEN,
        "q_lora_rank": Q_LORA,
        "kv_lora_rank": LATENT,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": V_HEAD,
        "index_n_heads": INDEX_HEADS,
        "index_head_dim": INDEX_DIM,
        "index_topk": TOPK,
        "indexer_rope_interleave": True,
        "max_position_embeddings": PAGE,
        "rope_parameters": {"rope_theta": 8e6, "rope_type": "default"},
    }
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(config))
        args = ServerArgs(
            model_path=directory,
            device="cuda",
            tp_size=TP,
            attention_backend="dsa",
            dsa_prefill_backend="aiter",
            dsa_decode_backend="aiter",
            dsa_topk_backend="sgl-kernel",
            kv_cache_dtype="bfloat16",
            load_format="dummy",
            skip_tokenizer_init=True,
        )
        args.get_model_config()  # read while it is there
    return args
