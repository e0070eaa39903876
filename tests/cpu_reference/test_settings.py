import pytest

from sglang_cp.cpu_reference import activate, settings
from sglang_cp.cpu_reference.plugin import register
from sglang_cp.cpu_reference.settings import Mode, SettingsError, resolve_mode


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    monkeypatch.delenv("SGLANG_CP_CPU_MODE", raising=False)


def test_the_platform_stays_out_of_the_way_unless_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert activate() is None
    monkeypatch.setenv("SGLANG_PLATFORM", "another")
    assert activate() is None
    monkeypatch.setenv("SGLANG_PLATFORM", "cpu_reference")
    assert activate() == "sglang_cp.cpu_reference.platform.CpuReferencePlatform"


def test_the_plugin_does_nothing_unless_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("installed without being chosen")

    monkeypatch.setattr("sglang_cp.cpu_reference.install.install", fail)
    register()


def test_a_failed_installation_ends_the_start_instead_of_being_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise KeyError("a name upstream no longer has")

    monkeypatch.setenv("SGLANG_PLATFORM", "cpu_reference")
    monkeypatch.setattr("sglang_cp.cpu_reference.install.install", fail)
    with pytest.raises(SystemExit, match="a name upstream no longer has"):
        register()


@pytest.mark.parametrize(
    ("requested", "dtype", "expected"),
    [
        (None, "auto", Mode.FAITHFUL),
        (None, "bfloat16", Mode.FAITHFUL),
        (None, "float32", Mode.EXACT),
        ("exact", "auto", Mode.EXACT),
        ("exact", "float32", Mode.EXACT),
        ("faithful", "bfloat16", Mode.FAITHFUL),
    ],
)
def test_mode(monkeypatch: pytest.MonkeyPatch, requested: str | None, dtype: str, expected: Mode) -> None:
    if requested is not None:
        monkeypatch.setenv("SGLANG_CP_CPU_MODE", requested)
    assert resolve_mode(dtype) is expected


@pytest.mark.parametrize(
    ("requested", "dtype", "complaint"),
    [
        ("exact", "bfloat16", "needs --dtype float32"),
        ("faithful", "float32", "needs --dtype bfloat16"),
        ("fast", "auto", "'fast' is not a mode"),
        ("", "float16", "no mode for --dtype float16"),
    ],
)
def test_a_contradiction_is_refused(
    monkeypatch: pytest.MonkeyPatch, requested: str, dtype: str, complaint: str
) -> None:
    monkeypatch.setenv("SGLANG_CP_CPU_MODE", requested)
    with pytest.raises(SettingsError, match=complaint):
        resolve_mode(dtype)


def test_ranks_inherit_the_resolved_mode() -> None:
    settings.publish_mode(Mode.EXACT)
    assert settings.mode() is Mode.EXACT


@pytest.mark.parametrize(("given", "expected"), [("", None), ("3", 3 << 20)])
def test_nominal_memory(monkeypatch, given, expected):
    monkeypatch.setenv("SGLANG_CP_CPU_MEMORY_MIB", given)
    assert settings.nominal_memory_bytes() == expected


@pytest.mark.parametrize("given", ["0", "-1", "2.5", "much"])
def test_nominal_memory_that_is_none_is_refused(monkeypatch, given):
    monkeypatch.setenv("SGLANG_CP_CPU_MEMORY_MIB", given)
    with pytest.raises(settings.SettingsError, match="positive number of MiB"):
        settings.nominal_memory_bytes()


@pytest.mark.parametrize(("given", "forked"), [("", False), ("0", False), ("1", True)])
def test_ranks_are_forked_only_where_asked(monkeypatch, given, forked):
    """As SGLang has it, every rank finds the package and its plugins by itself."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_cp.cpu_reference import install, plugin

    registered = []
    monkeypatch.setattr(HookRegistry, "register", lambda *hook: registered.append(hook))
    monkeypatch.setattr(install, "install", lambda: None)
    monkeypatch.setenv("SGLANG_PLATFORM", settings.PLATFORM_NAME)
    monkeypatch.setenv("SGLANG_CP_CPU_FORK", given)

    plugin.register()

    names = [(name, kind) for name, _, kind in registered]
    after_upstream_chose_spawn = ("sglang.srt.entrypoints.engine._set_envs_and_config", HookType.AFTER)
    assert names == ([after_upstream_chose_spawn] if forked else [])
