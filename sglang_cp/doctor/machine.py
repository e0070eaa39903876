"""Facts about this machine. Each may be missing, with the reason in its place: a support thread wants the rest anyway.

Nothing here needs a vendor's tool, and only the probe of symmetric memory allocates on a GPU (a few bytes, on the
first), so that the doctor may run beside a server.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sglang_cp.patching.tree import PACKAGE, open_tree
from sglang_cp.pin import read_pin

_T = TypeVar("_T")

PLUGIN = "sglang_cp"
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_AITER_DISTRIBUTIONS = ("amd-aiter", "aiter")


@dataclass(frozen=True)
class Fact(Generic[_T]):
    """A value, or else why there is none."""

    value: _T | None
    why_not: str = ""


def ask(question: Callable[[], _T]) -> Fact[_T]:
    """The answer, or the first line of what the question raised."""
    try:
        return Fact(question())
    except Exception as error:
        return Fact(None, str(error).partition("\n")[0] or type(error).__name__)


@dataclass(frozen=True)
class Version:
    """A component's version against what the pinned SGLang wants.

    Attributes:
        name: of the component.
        found: its version.
        wanted: a version specifier such as ``==2.11.0``; empty if nothing is wanted.
        matches: None if one of them is unknown. A local suffix (``+rocm7.2``) does not matter.
    """

    name: str
    found: Fact[str]
    wanted: str
    matches: bool | None


@dataclass(frozen=True)
class GPU:
    """A visible GPU: its index, name, architecture (``gfx950``, ``sm_90``) and memory in bytes."""

    index: int
    name: str
    architecture: str
    memory_bytes: int


@dataclass(frozen=True)
class Machine:
    """What was found.

    Attributes:
        versions: of what SGLang's release pins, and of the GPU's runtime.
        patches: one sentence if the patches are applied, else why SGLang would refuse CP.
        plugin: one sentence if SGLang would load the plugin, else why not.
        rocm: whether this PyTorch is built for ROCm.
        gpus: the visible ones.
        unreachable: pairs (from, to) of GPUs without peer access.
        symmetric_memory: the backend's name if the first GPU can allocate some.
        aiter: its version.
    """

    versions: Sequence[Version]
    patches: Fact[str]
    plugin: Fact[str]
    rocm: bool
    gpus: Fact[Sequence[GPU]]
    unreachable: Fact[Sequence[tuple[int, int]]]
    symmetric_memory: Fact[str]
    aiter: Fact[str]


def examine() -> Machine:
    """All facts. Imports PyTorch if there is one, never SGLang."""
    hip = ask(lambda: _torch().version.hip).value
    return Machine(
        versions=[
            _version("Python", Fact(platform.python_version()), ask(_own_python)),
            _version("SGLang", ask(lambda: open_tree().release), ask(lambda: f"=={read_pin().release}")),
            _version("PyTorch", _installed("torch"), _required(PACKAGE, "torch")),
            _version("transformers", _installed("transformers"), _required(PACKAGE, "transformers")),
            _version("Triton", _installed("triton"), _required("torch", "triton")),
            _version("ROCm" if hip else "CUDA", ask(_runtime), Fact("")),
        ],
        patches=ask(_patches),
        plugin=ask(_plugin),
        rocm=bool(hip),
        gpus=ask(_gpus),
        unreachable=ask(_unreachable),
        symmetric_memory=ask(_symmetric_memory),
        aiter=ask(_aiter),
    )


def _torch() -> Any:
    import torch

    return torch


def _installed(distribution: str) -> Fact[str]:
    fact = ask(lambda: importlib.metadata.version(distribution))
    return fact if fact.value else Fact(None, "not installed")


def _own_python() -> str:
    return importlib.metadata.metadata("sglang-cp")["Requires-Python"]


def _required(distribution: str, dependency: str) -> Fact[str]:
    """The specifier with which one distribution wants another; empty if it sets none."""

    def specifier() -> str:
        from packaging.requirements import Requirement

        for text in importlib.metadata.requires(distribution) or ():
            requirement = Requirement(text)
            if requirement.name == dependency and (not requirement.marker or requirement.marker.evaluate()):
                return str(requirement.specifier)
        return ""

    return ask(specifier)


def _version(name: str, found: Fact[str], wanted: Fact[str]) -> Version:
    specifier, version = wanted.value or "", found.value
    matches = ask(lambda: _contains(specifier, version)).value if specifier and version else None
    return Version(name, found, specifier, matches)


def _contains(specifier: str, version: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(version, prereleases=True)


def _runtime() -> str:
    version = _torch().version
    found = version.hip or version.cuda
    if not found:
        raise LookupError("this PyTorch is built for neither CUDA nor ROCm")
    return str(found)


def _patches() -> str:
    from sglang_cp.patching import verify_applied

    verify_applied()
    return "applied, this package's series"


def _plugin() -> str:
    """SGLang loads plugins by entry point, and only those that SGLANG_PLUGINS names if it is set."""
    if PLUGIN not in importlib.metadata.entry_points(group="sglang.srt.plugins").names:
        raise LookupError("SGLang's plugin sglang_cp is not installed in this Python; install this package with pip.")
    allowed = [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",") if name.strip()]
    if allowed and PLUGIN not in allowed:
        raise LookupError("SGLANG_PLUGINS does not name sglang_cp; add it, or unset the variable.")
    return "installed, SGLang loads it"


def _gpus() -> Sequence[GPU]:
    cuda = _torch().cuda
    try:
        cuda.init()
    except Exception as error:
        masks = [f" ({name}={os.environ[name]})" for name in _VISIBLE if name in os.environ]
        raise LookupError(str(error).partition(". ")[0].rstrip(".") + "".join(masks)) from error
    return [_gpu(index, cuda.get_device_properties(index)) for index in range(cuda.device_count())]


def _gpu(index: int, properties: Any) -> GPU:
    # ROCm appends features, as in gfx950:sramecc+:xnack-.
    gfx = getattr(properties, "gcnArchName", "").partition(":")[0]
    architecture = gfx if gfx.startswith("gfx") else f"sm_{properties.major}{properties.minor}"
    return GPU(index, properties.name, architecture, properties.total_memory)


def _unreachable() -> Sequence[tuple[int, int]]:
    indices = [gpu.index for gpu in _gpus()]
    reaches = _torch().cuda.can_device_access_peer
    return [(one, other) for one in indices for other in indices if one != other and not reaches(one, other)]


def _symmetric_memory() -> str:
    """Whether a rank could have some; that peers can map it is known only to a running group of ranks."""
    gpu = _gpus()[0]
    torch = _torch()
    device = torch.device("cuda", gpu.index)
    import torch.distributed._symmetric_memory as symmetric_memory

    symmetric_memory.empty(1, dtype=torch.uint8, device=device)
    return str(symmetric_memory.get_backend(device))


def _aiter() -> str:
    if importlib.util.find_spec("aiter") is None:
        raise LookupError("not installed")
    versions = [found for name in _AITER_DISTRIBUTIONS if (found := _installed(name).value)]
    return versions[0] if versions else "of unknown version"
