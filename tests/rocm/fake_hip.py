"""Makes this process look like a gfx950 machine with aiter to SGLang. Call `pretend` before SGLang is imported.

SGLang decides by module-level flags, evaluated at import, so a process is either one or the other: the tests run what
needs this in a process of its own. Triton kernels run in Triton's interpreter; kernels of aiter, sgl-kernel and
tilelang are what `fakes` names; any other can be imported, as on an image that has it, but not called.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types
from typing import Any, NoReturn

_PACKAGES = ("aiter", "sgl_kernel", "tilelang", "fast_hadamard_transform")


def pretend(fakes: dict[str, Any]) -> None:
    """``fakes``: full name (``aiter.mla.mla_decode_fwd``) -> what stands there."""
    os.environ.update(SGLANG_USE_AITER="1", TRITON_INTERPRET="1", TORCHDYNAMO_DISABLE="1")
    import torch
    import triton
    from triton.backends.compiler import GPUTarget

    torch.version.hip, torch.version.cuda = "7.2.0", None
    torch.cuda.device_count = lambda: 0
    torch.cuda.get_device_capability = lambda device=None: (9, 5)
    torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(
        gcnArchName="gfx950:sramecc+:xnack-", multi_processor_count=256
    )
    torch.cuda.current_stream = lambda device=None: None
    triton.runtime.driver.set_active(_Driver(GPUTarget("hip", "gfx950", 64)))
    sys.meta_path.insert(0, _Finder(fakes))

    from sglang.srt import utils

    utils.get_device_capability = utils.common.get_device_capability = lambda device_id=0: (9, 5)
    utils.common.get_amdgpu_memory_capacity = lambda: 288 * 1024  # MiB


class _Driver:
    """What SGLang's modules ask of Triton's driver while they are imported."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of the packages, whatever its name."""

    def __init__(self, fakes: dict[str, Any]) -> None:
        self._fakes = fakes

    def find_spec(self, fullname, path, target=None):
        known = fullname.split(".")[0] in _PACKAGES or fullname in {name.rpartition(".")[0] for name in self._fakes}
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec):
        module = _Module(spec.name)
        module.__path__ = []
        for name, fake in self._fakes.items():
            owner, _, attribute = name.rpartition(".")
            if owner == spec.name:
                setattr(module, attribute, fake)
        return module

    def exec_module(self, module):
        pass


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.__name__}.{name}")


class _Missing:
    """Stands for a kernel, enum or class that no test needs; SGLang may look it up and pass it on."""

    importing = True
    """SGLang calls a few at import (`get_hip_quant(QuantType.per_1x128)`)."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> "_Missing":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> "_Missing":
        if not _Missing.importing:
            _called(self._name)
        return _Missing(f"{self._name}()")


def _called(name: str) -> NoReturn:
    raise AssertionError(f"{name} was called: the tests know no such step of this path")


def imports_are_done() -> None:
    """From here on a kernel without a fake must not be called."""
    _Missing.importing = False
