from __future__ import annotations

import importlib.metadata
import sys
from types import SimpleNamespace

import pytest

from sglang_cp.doctor import machine
from sglang_cp.errors import PatchStateError


class FakeCuda:
    """torch.cuda of two GPUs, of which the first cannot read the second."""

    properties = SimpleNamespace(
        name="AMD", gcnArchName="gfx950:sramecc+:xnack-", major=9, minor=5, total_memory=3 << 30
    )

    def init(self) -> None:
        pass

    def device_count(self) -> int:
        return 2

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return self.properties

    def can_device_access_peer(self, one: int, other: int) -> bool:
        assert one != other
        return (one, other) != (0, 1)


def with_torch(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda, hip: str | None = "7.2") -> None:
    version = SimpleNamespace(hip=hip, cuda=None if hip else "13.0")
    monkeypatch.setattr(machine, "_torch", lambda: SimpleNamespace(cuda=cuda, version=version))


def test_gpus_and_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    with_torch(monkeypatch, FakeCuda())
    found = machine.examine()
    assert found.rocm
    assert found.gpus.value[1] == machine.GPU(1, "AMD", "gfx950", 3 << 30)
    assert found.unreachable.value == [(0, 1)]


def test_cuda_gpus_are_named_by_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.properties = SimpleNamespace(name="H200", major=9, minor=0, total_memory=1)
    with_torch(monkeypatch, cuda, hip=None)
    found = machine.examine()
    assert not found.rocm
    assert found.gpus.value[0].architecture == "sm_90"


def test_no_gpu_says_why_and_what_hides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()

    def init() -> None:
        raise RuntimeError("No HIP GPUs are available")

    cuda.init = init
    with_torch(monkeypatch, cuda)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "9")
    found = machine.examine()
    for fact in (found.gpus, found.unreachable, found.symmetric_memory):
        assert fact.value is None
        assert fact.why_not == "No HIP GPUs are available (HIP_VISIBLE_DEVICES=9)"


def test_nothing_is_missed_where_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python with this package only: every fact has its reason, and what is known is there."""

    def missing(distribution: str) -> str:
        raise importlib.metadata.PackageNotFoundError(distribution)

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setattr(importlib.metadata, "requires", missing)
    monkeypatch.setattr("sglang_cp.patching.tree.installed_root", lambda: None)
    found = machine.examine()
    versions = {version.name: version for version in found.versions}
    assert versions["Python"].found.value == sys.version.split()[0]
    assert versions["PyTorch"].found == machine.Fact(None, "not installed")
    assert versions["SGLang"].found.why_not.startswith("SGLang is not installed")
    assert all(version.matches is None for name, version in versions.items() if name != "Python")
    assert found.patches.why_not.startswith("SGLang is not installed")
    assert "torch" in found.gpus.why_not


@pytest.mark.parametrize(
    ("version", "matches"), [("2.11.0", True), ("2.11.0+rocm7.2.0", True), ("2.9.1+rocm7.2.0", False)]
)
def test_versions_are_held_against_the_pin_without_their_local_suffix(
    monkeypatch: pytest.MonkeyPatch, version: str, matches: bool
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    monkeypatch.setattr(
        importlib.metadata, "requires", lambda _: ["torchao==0.17", "torch==9; extra == 'x'", "torch==2.11.0"]
    )
    torch = next(found for found in machine.examine().versions if found.name == "PyTorch")
    assert (torch.wanted, torch.matches) == ("==2.11.0", matches)


def test_an_unpatched_tree_is_told_in_the_words_of_the_start_up_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PatchStateError("Half applied; run `sglang-cp patch apply`.")

    monkeypatch.setattr("sglang_cp.patching.verify_applied", refuse)
    assert machine.examine().patches == machine.Fact(None, "Half applied; run `sglang-cp patch apply`.")


@pytest.mark.parametrize(("names", "loaded"), [("", True), ("other, sglang_cp", True), ("other", False)])
def test_plugin_whitelist(monkeypatch: pytest.MonkeyPatch, names: str, loaded: bool) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", names)
    plugin = machine.examine().plugin
    assert (plugin.value is not None) is loaded
    assert loaded or "SGLANG_PLUGINS does not name sglang_cp" in plugin.why_not


def test_plugin_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: SimpleNamespace(names={"other"}))
    assert "not installed in this Python" in machine.examine().plugin.why_not
