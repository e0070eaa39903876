"""Small stand-ins that `hooks` lists: no kernels, only answers a CPU must give differently."""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable
from typing import Any

import torch

from sglang_cp.cpu_reference.settings import Mode, mode

_MQA_LOGITS_BUDGET_BYTES = 512 << 20


def yes() -> bool:
    return True


def no(*_: Any) -> bool:
    return False


def hopper_capability(device: Any = None) -> tuple[int, int]:
    """A Hopper GPU's compute capability: upstream's BF16 DSA defaults are made for it."""
    return 9, 0


class Stream:
    """CPU work is done when a call returns, so there is nothing to wait for."""

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...


def current_stream(device: Any = None) -> Stream:
    return Stream()


def synchronize(device: Any = None) -> None:
    """Nothing is under way."""


def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """Memory is not recycled while Python holds it."""


class TorchWithoutPinnedMemory(types.ModuleType):
    """The torch module, except that `tensor` takes `pin_memory` and ignores it: there is no GPU to pin for."""

    def __init__(self) -> None:
        super().__init__("torch")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    @functools.wraps(torch.tensor)
    def tensor(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return torch.tensor(*args, **kwargs)


def projection_in_mode_dtype(init: Callable[..., None], indexer: Any, *args: Any, **kwargs: Any) -> None:
    """Construct the indexer; in exact mode its fused BF16 projection takes, and returns, exact activations.

    The parameter itself stays BF16, as upstream's weight loader wants it.
    """
    init(indexer, *args, **kwargs)
    projection = getattr(indexer, "wk_weights_proj", None)
    if projection is not None and mode() is Mode.EXACT:
        projection.forward = lambda x: (torch.nn.functional.linear(x, projection.weight.to(x.dtype)), None)


def weights_proj_in_float32(indexer: Any, x: torch.Tensor) -> torch.Tensor:
    """Head gates `[rows, heads]` of `x` `[rows, hidden]`, in float32."""
    return torch.nn.functional.linear(x.double(), indexer.weights_proj.weight.double()).float()


def mqa_logits_budget_bytes(indexer: Any, device_index: int) -> int:
    """Memory for the scores of one chunk of rows."""
    return _MQA_LOGITS_BUDGET_BYTES


def page_table_decode(
    page_table: torch.Tensor, topk_indices: torch.Tensor, result: torch.Tensor | None = None, page_size: int = 1
) -> torch.Tensor:
    from sglang.srt.layers.attention.dsa import transform_index

    out = torch.empty(topk_indices.shape, dtype=torch.int32) if result is None else result
    transform_index.transform_index_page_table_decode_ref(page_table, topk_indices.long(), out, page_size)
    return out


def page_table_prefill(
    page_table: torch.Tensor,
    topk_indices: torch.Tensor,
    extend_lens_cpu: list[int],
    page_size: int = 1,
    output_num_tokens: int | None = None,
    page_table_is_expanded: bool = False,
    cu_seqlens_q: torch.Tensor | None = None,
) -> torch.Tensor:
    from sglang.srt.layers.attention.dsa import transform_index

    transformed: torch.Tensor = transform_index.transform_index_page_table_prefill_ref(
        page_table, topk_indices.long(), extend_lens_cpu, page_size, output_num_tokens, page_table_is_expanded
    )
    return transformed


def get_last_loc(req_to_token: torch.Tensor, req_pool_indices: torch.Tensor, prefix_lens: torch.Tensor) -> torch.Tensor:
    from sglang.srt.mem_cache import common

    last_loc: torch.Tensor = common.get_last_loc_torch(req_to_token, req_pool_indices, prefix_lens)
    return last_loc


def apply_vocab_mask(grammar: Any, logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
    """Set `logits` `[rows, vocabulary]` to -inf where a row's bit of `vocab_mask` (int32 words) is 0, in place."""
    from xgrammar import apply_token_bitmask_inplace

    apply_token_bitmask_inplace(logits, vocab_mask)


def handle_cpu_backends(server_args: Any) -> None:
    """The platform's own `apply_server_args_defaults` comes next and chooses the backends."""


def get_rope_cpu(*args: Any, device: str | None = None, **kwargs: Any) -> Any:
    """`get_rope` with `get_rope_cpu`'s signature: its ninth argument is the device."""
    from sglang.srt.layers.rotary_embedding.factory import get_rope

    return get_rope(*args[:8], **kwargs)


def unchanged_config(model_config: Any, load_config: Any, tp_size: int) -> Any:
    """The model's configuration as the checkpoint has it."""
    return model_config


def init_threads(model_runner: Any) -> None:
    """One thread a rank, without binding, unless OMP_NUM_THREADS says otherwise.

    Several ranks and servers share a small machine's CPUs; threads that wait for each other there cost far more than
    they compute.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def gloo_only(init_model_parallel_group: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Create the group with torch's gloo collectives alone."""
    return init_model_parallel_group(*args, **{**kwargs, "use_pynccl": False})


def all_gather_into_tensor(output: torch.Tensor, input: torch.Tensor, group_name: str) -> None:
    """CPU implementation of upstream's operator `sglang::reg_all_gather_into_tensor`."""
    _group(group_name)._all_gather_into_tensor(output, input)


def reduce_scatter_tensor(output: torch.Tensor, input: torch.Tensor, group_name: str) -> None:
    """CPU implementation of upstream's operator `sglang::reg_reduce_scatter_tensor`."""
    _group(group_name)._reduce_scatter_tensor(output, input)


def _group(name: str) -> Any:
    from sglang.srt.distributed import parallel_state

    return parallel_state._groups[name]()
