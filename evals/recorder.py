"""An SGLang plugin that records what every forward does: operations with their shapes, and peak memory.

Loaded into a server by :mod:`evals.costs`. Each rank appends a line of JSON for each forward to a file of its own:
``mode`` (DECODE, EXTEND, ...), ``tokens`` of the flattened batch, ``calls`` (every operator that torch dispatched,
collectives among them, with the shape and dtype of its tensors) and ``peak_bytes`` that the forward's tensors occupied.
"""

from __future__ import annotations

import json
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

FOLDER_VARIABLE = "SGLANG_CP_RECORD_FOLDER"


class Recorder(TorchDispatchMode):
    """Sees every operator; counts the bytes of the storages that they create while a tensor holds them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[str] = []
        self.peak_bytes = 0
        self._holders: Counter[int] = Counter()
        self._bytes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        seen = " ".join(f"{tuple(t.shape)}:{str(t.dtype).removeprefix('torch.')}" for t in _tensors(args))
        self.calls.append(f"{func} {seen}")
        known = {t.untyped_storage().data_ptr() for t in _tensors(args)} - self._bytes.keys()
        for tensor in _tensors([result]):
            if tensor.untyped_storage().data_ptr() not in known:
                self._hold(tensor)
        return result

    def _hold(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        self._holders[address] += 1
        self._bytes[address] = storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, sum(self._bytes.values()))
        weakref.finalize(tensor, self._release, address)

    def _release(self, address: int) -> None:
        self._holders[address] -= 1
        if not self._holders[address]:
            del self._holders[address], self._bytes[address]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.forward", _record, HookType.AROUND)


def _record(forward: Callable[..., Any], runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
    recorder = Recorder()
    with recorder:
        result = forward(runner, forward_batch, *args, **kwargs)
    record = {
        "mode": forward_batch.forward_mode.name,
        "tokens": len(forward_batch.input_ids),
        "calls": recorder.calls,
        "peak_bytes": recorder.peak_bytes,
    }
    with Path(os.environ[FOLDER_VARIABLE], f"rank{runner.tp_rank}.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    return result
