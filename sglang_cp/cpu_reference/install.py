"""Puts the replacements of `hooks` in place, and checks that each one is."""

from __future__ import annotations

import pkgutil
import sys
import types
from typing import Any

from sglang_cp.cpu_reference import shims
from sglang_cp.cpu_reference.hooks import REPLACEMENTS, How, Replacement
from sglang_cp.cpu_reference.kernels import sparse_mla, speculative, speculative_sampling, topk

_installed = False


class NotInPlaceError(RuntimeError):
    """Upstream would not call a replacement; the message names it."""


def install() -> None:
    """Replace upstream's GPU code in this process. Raises NotInPlaceError when one replacement does not hold."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    sys.modules.update(_sgl_kernel_modules())
    hook_types = {How.HOOK: HookType.REPLACE, How.AROUND: HookType.AROUND}
    before = {replacement.target: _current(replacement) for replacement in REPLACEMENTS}
    for replacement in REPLACEMENTS:
        if replacement.how in hook_types:
            HookRegistry.register(replacement.target, replacement.substitute, hook_types[replacement.how])
        else:
            owner, name = _owner(replacement.target)
            setattr(owner, name, replacement.substitute)
    HookRegistry.apply_hooks()  # it only logs what it could not apply
    _register_operators()
    for replacement in REPLACEMENTS:
        _check(replacement, before[replacement.target])
    global _installed
    _installed = True


def is_installed() -> bool:
    """Whether `install` succeeded in this process."""
    return _installed


def _check(replacement: Replacement, before: Any) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    now = _current(replacement)
    if replacement.how in (How.HOOK, How.AROUND):
        in_place = replacement.target in HookRegistry._patched and now is not before
    else:
        in_place = now is replacement.substitute
    if not in_place:
        raise NotInPlaceError(f"{replacement.target} was not replaced")


def _current(replacement: Replacement) -> Any:
    """What the target's name holds. Raises NotInPlaceError for a name that upstream no longer has."""
    owner, name = _owner(replacement.target)
    if replacement.how is How.ADD:
        return getattr(owner, name, None)
    try:
        return getattr(owner, name)
    except AttributeError:
        raise NotInPlaceError(f"this SGLang has no {replacement.target}") from None


def _owner(target: str) -> tuple[Any, str]:
    path, _, name = target.rpartition(".")
    return pkgutil.resolve_name(path), name


def _register_operators() -> None:
    """Give upstream's operators a CPU implementation, and its indexer the CUDA control flow."""
    from sglang.srt.layers.attention.dsa.dsa_indexer import Indexer
    from sglang.srt.layers.utils import MultiPlatformOp
    from sglang.srt.platforms import current_platform
    from sglang.srt.utils.common import sglang_lib

    sglang_lib.impl("reg_all_gather_into_tensor", shims.all_gather_into_tensor, "CPU")
    sglang_lib.impl("reg_reduce_scatter_tensor", shims.reduce_scatter_tensor, "CPU")
    MultiPlatformOp.register_oot_forward(Indexer, Indexer.forward_cuda, current_platform.get_dispatch_key_name())


def _sgl_kernel_modules() -> dict[str, types.ModuleType]:
    """A `sgl_kernel` package with the kernels DSA imports from it: the real one does not load without a GPU.

    Importing any other kernel from it raises ImportError, as without the package.
    """
    package = types.ModuleType("sgl_kernel", "CPU reference kernels of sglang-cp.")
    package.__path__ = []
    flash_mla = types.ModuleType("sgl_kernel.flash_mla")
    for module, kernels in (
        (package, (topk.fast_topk_v2, topk.fast_topk_transform_fused, topk.fast_topk_transform_ragged_fused)),
        (
            package,
            (
                speculative.verify_tree_greedy,
                speculative_sampling.top_k_renorm_prob,
                speculative_sampling.top_p_renorm_prob,
                speculative_sampling.tree_speculative_sampling_target_only,
            ),
        ),
        (flash_mla, (sparse_mla.flash_mla_sparse_fwd,)),
    ):
        for kernel in kernels:
            setattr(module, kernel.__name__, kernel)
    return {"sgl_kernel": package, "sgl_kernel.flash_mla": flash_mla}
