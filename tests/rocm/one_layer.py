"""One GLM-5.2 attention layer on SGLang's ROCm path, at tp 4: plain TP, and a CP extend of the same rows.

SGLang's own layer, indexer, DSA backend and pool run, one rank at a time; kernels are `fake_kernels`, weights are
random, and index_topk is 8 in place of 2,048, so that it drops keys of prompts of a few rows.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from sglang_cp.cpu_reference.kernels.quant import quantize
from tests.rocm import fake_kernels
from tests.rocm.geometry import (
    EXTENDS,
    HEADS,
    HIDDEN,
    INDEX_DIM,
    KV_CACHES,
    LATENT,
    NOPE,
    PAGE,
    PAGES,
    PREFIXES,
    Q_LORA,
    ROPE,
    ROWS,
    TP,
    V_HEAD,
    forward_batch,
    page_table,
    server_args,
)


@dataclass
class Run:
    """What one rank did in one forward."""

    calls: list[fake_kernels.Call]
    output: torch.Tensor
    """[rows, hidden]: under plain TP a partial sum of all rows, in a CP extend the complete rows of this rank."""
    latents: torch.Tensor
    """[slots, 576], as the pool holds them afterwards."""
    index_keys: torch.Tensor
    """[pages, 64 * 132], uint8."""


class Ranks:
    """A process group of ranks that run one after the other."""

    def __init__(self) -> None:
        self._rounds: list[dict[int, torch.Tensor]] = []

    def run(self, forward: Any) -> list[Run]:
        """``forward(rank, group)`` of every rank: again from its start, when a gather lacked another rank's rows."""
        done: dict[int, Run] = {}
        while len(done) < TP:
            for rank in sorted(set(range(TP)) - set(done)):
                with contextlib.suppress(_Waiting):
                    done[rank] = forward(rank, _Member(rank, self._rounds))
        return [done[rank] for rank in range(TP)]


class _Waiting(Exception):
    """Not every rank has put its rows into a gather."""


class _Member:
    def __init__(self, rank: int, rounds: list[dict[int, torch.Tensor]]) -> None:
        self._rank, self._rounds, self._next = rank, rounds, 0

    def all_gather_into_tensor(self, output: torch.Tensor, input: torch.Tensor) -> None:
        assert input.is_contiguous()
        if self._next == len(self._rounds):
            self._rounds.append({})
        rows = self._rounds[self._next]
        self._next += 1
        rows[self._rank] = input.clone()
        if len(rows) < TP:
            raise _Waiting
        fake_kernels.record("all_gather", input=input)
        output.copy_(torch.cat([rows[rank] for rank in range(TP)]))


class Layer:
    """Every rank's attention module, with its slices of the same weights, as the loader leaves them."""

    def __init__(self) -> None:
        from sglang.srt import runtime_context
        from sglang.srt.distributed import parallel_state

        torch.manual_seed(0)
        self.args = server_args()
        runtime_context.get_context().set_server_args(self.args)
        self.parallel = runtime_context.get_parallel()
        parallel_state._TP = SimpleNamespace(world_size=TP)  # linear layers look the group up, and do not use it
        self._config = self.args.get_model_config().hf_config
        self.attention = self._modules()
        self._hidden = torch.randn(ROWS, HIDDEN).to(torch.bfloat16)
        self._prefix_latents = torch.randn(sum(PREFIXES), LATENT + ROPE)
        self._prefix_keys = torch.randn(sum(PREFIXES), INDEX_DIM)

    def configure(self, backend: str, kv_cache: str) -> None:
        """``--dsa-prefill-backend``, ``--dsa-decode-backend`` and ``--kv-cache-dtype``."""
        self.args.__dict__.update(dsa_prefill_backend=backend, dsa_decode_backend=backend, kv_cache_dtype=kv_cache)
        for attention in self.attention:
            attention.kv_cache_dtype = kv_cache

    def plain_tp(self) -> list[Run]:
        return [self._run(rank, self.attention[rank], None) for rank in range(TP)]

    def cp_extend(self) -> list[Run]:
        from sglang_cp.weights.attention import with_all_heads

        weights = self._gathered()
        layers = [with_all_heads(attention, TP, lambda: weights) for attention in self.attention]
        return Ranks().run(lambda rank, group: self._run(rank, layers[rank], group))

    def backend(self, size: int = TP) -> Any:
        """SGLang's DSA backend over a new pool that holds the prefix, on a rank of ``size``."""
        from sglang.srt.layers.attention.dsa_backend import DeepseekSparseAttnBackend

        runner = SimpleNamespace(
            device="cpu",
            page_size=PAGE,
            server_args=self.args,
            hisparse_coordinator=None,
            kv_cache_dtype=KV_CACHES[self.args.kv_cache_dtype],
            token_to_kv_pool=self._pool(),
            req_to_token_pool=SimpleNamespace(size=len(EXTENDS), req_to_token=page_table()),
            model_config=SimpleNamespace(
                hf_config=self._config,
                context_len=PAGE,
                num_attention_heads=HEADS,
                qk_nope_head_dim=NOPE,
                kv_lora_rank=LATENT,
                qk_rope_head_dim=ROPE,
            ),
        )
        with self._rank(0, size):
            backend = DeepseekSparseAttnBackend(runner)
        backend.prefill_attention_backend_str = backend.decode_attention_backend_str = "dsa"
        return backend

    def _rank(self, rank: int, size: int = TP) -> contextlib.AbstractContextManager[Any]:
        """SGLang's view of itself as one rank of a plain TP server."""
        return self.parallel.override(
            tp_size=size, tp_rank=rank, attn_tp_size=size, attn_tp_rank=rank, attn_cp_size=1, attn_cp_rank=0
        )

    def _run(self, rank: int, attention: Any, group: _Member | None) -> Run:
        from sglang.srt.layers.communicator import AttentionInputs, get_attn_tp_context
        from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

        backend, batch, hidden = self.backend(), forward_batch(), self._hidden.clone()
        if group is not None:
            from sglang_cp.extend import CPExtend
            from sglang_cp.layout import TokenLayout
            from sglang_cp.rows import ProcessGroupRows

            batch.attn_cp_metadata = cp = CPExtend(
                TokenLayout(ROWS, TP, rank), ProcessGroupRows(group, TP), placement=None
            )
            hidden, positions = cp.shard_rows(hidden), cp.shard_rows(batch.positions)
        else:
            positions = batch.positions
        fake_kernels.CALLS.clear()
        with self._rank(rank), forward_context(ForwardContext(backend)), torch.no_grad(), _recorded_stores():
            backend.init_forward_metadata(batch)
            get_attn_tp_context().set_attn_inputs(AttentionInputs(hidden, batch, attention.prepare_qkv_latent))
            output = attention(positions, hidden, batch, zero_allocator=None)[0]
        pool = backend.token_to_kv_pool
        return Run(
            list(fake_kernels.CALLS),
            output,
            pool.get_key_buffer(0).squeeze(1).float(),
            pool.index_k_with_scale_buffer[0].clone(),
        )

    def _pool(self) -> Any:
        from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool

        pool = DSATokenToKVPool(
            size=PAGE * PAGES,
            page_size=PAGE,
            kv_lora_rank=LATENT,
            dtype=KV_CACHES[self.args.kv_cache_dtype],
            qk_rope_head_dim=ROPE,
            layer_num=1,
            device="cpu",
            index_head_dim=INDEX_DIM,
            enable_memory_saver=False,
            kv_cache_dim=LATENT + ROPE,
        )
        prefix = page_table()[1, : PREFIXES[1]].long()
        stored = self._prefix_latents.to(pool.dtype)
        pool.kv_buffer[0][prefix] = stored.view(pool.store_dtype).unsqueeze(1)
        keys, scales = quantize(self._prefix_keys, INDEX_DIM, round_scale_up_to_power_of_two=True)
        rows = pool.index_k_with_scale_buffer[0].view(-1, PAGE, INDEX_DIM + 4)
        rows[prefix // PAGE, prefix % PAGE] = torch.cat([keys.view(torch.uint8), scales.view(torch.uint8)], -1)
        return pool

    def _modules(self) -> list[Any]:
        from sglang.srt.models.deepseek_v2 import DeepseekV2AttentionMLA

        modules = []
        for rank in range(TP):
            torch.set_default_dtype(torch.bfloat16)
            with self._rank(rank):
                modules.append(
                    DeepseekV2AttentionMLA(
                        config=self._config,
                        hidden_size=HIDDEN,
                        num_heads=HEADS,
                        qk_nope_head_dim=NOPE,
                        qk_rope_head_dim=ROPE,
                        v_head_dim=V_HEAD,
                        q_lora_rank=Q_LORA,
                        kv_lora_rank=LATENT,
                        max_position_embeddings=PAGE,
                        reduce_results=False,
                        layer_id=0,
                        prefix="model.layers.0.self_attn",
                    )
                )
            torch.set_default_dtype(torch.float32)
        for name, parameter in modules[0].named_parameters():
            sharded = name.split(".")[0] in ("q_b_proj", "kv_b_proj", "o_proj")
            _fill(parameter)
            for module in modules[1:]:
                other = module.get_parameter(name)
                _fill(other) if sharded else other.data.copy_(parameter)
        for module in modules:
            w_kc, w_vc = module.kv_b_proj.weight.unflatten(0, (-1, NOPE + V_HEAD)).split([NOPE, V_HEAD], dim=1)
            module.w_kc = w_kc.transpose(1, 2).contiguous().transpose(1, 2)
            module.w_vc = w_vc.contiguous().transpose(1, 2)
        return modules

    def _gathered(self) -> dict[str, torch.Tensor]:
        from sglang_cp.weights.shards import layer_shards

        by_rank = zip(*(layer_shards(attention) for attention in self.attention), strict=True)
        return {of[0].name: of[0].by_rank(torch.stack([shard.bytes() for shard in of])) for of in by_rank}


@contextlib.contextmanager
def _recorded_stores() -> Iterator[None]:
    """Record what the pool's own Triton kernels are given to store."""
    from sglang.srt.mem_cache import memory_pool

    in_bf16 = memory_pool.set_mla_kv_buffer_triton

    def store(kv_buffer: Any, loc: Any, k_nope: Any, k_rope: Any) -> None:
        fake_kernels.record("set_mla_kv_buffer", slots=loc, k_nope=k_nope, k_rope=k_rope)
        in_bf16(kv_buffer, loc, k_nope, k_rope)

    def store_in_fp8(kv_buffer: Any, loc: Any, k_nope: Any, k_rope: Any, fp8: Any) -> None:
        # In torch: Triton's interpreter rounds BF16 to FP8 without carrying (0.49 becomes 0.25).
        fake_kernels.record("set_mla_kv_buffer", slots=loc, k_nope=k_nope, k_rope=k_rope)
        kv_buffer[loc] = torch.cat([k_nope, k_rope], -1).to(fp8).view(kv_buffer.dtype)

    with mock.patch.multiple(
        memory_pool, set_mla_kv_buffer_triton=store, set_mla_kv_buffer_triton_fp8_quant=store_in_fp8
    ):
        yield


def _fill(parameter: torch.Tensor) -> None:
    if parameter.dim() == 1:
        parameter.data.uniform_(0.5, 1.5)
    else:
        parameter.data.normal_(std=parameter.shape[1] ** -0.5)
