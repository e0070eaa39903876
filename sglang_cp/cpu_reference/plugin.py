"""Entry point of `sglang.srt.plugins`: puts the platform's kernels in place in every SGLang process."""

from __future__ import annotations

from sglang_cp.cpu_reference.settings import PLATFORM_NAME, forks_ranks, is_selected


def register() -> None:
    """Install the platform, or do nothing when another one was chosen.

    SGLang only logs a plugin that raises an Exception, and would then serve with half of the kernels; SystemExit gets
    through and ends the start.
    """
    if not is_selected():
        return
    try:
        from sglang_cp.cpu_reference.install import install

        install()
        if forks_ranks():
            _fork_ranks()
    except Exception as error:
        raise SystemExit(
            f"The CPU reference platform could not be put in place ({type(error).__name__}: {error}): it fits one "
            f"SGLang release, so install the one that UPSTREAM pins, or unset SGLANG_PLATFORM={PLATFORM_NAME}."
        ) from error


def _fork_ranks() -> None:
    """Ranks begin as copies of the server process, which has imported SGLang: each would take 12 s of CPU for it."""
    import multiprocessing

    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def fork(*_: object) -> None:
        multiprocessing.set_start_method("fork", force=True)

    HookRegistry.register("sglang.srt.entrypoints.engine._set_envs_and_config", fork, HookType.AFTER)
