"""The whole list in a process of its own: what is in place, and that a hook that does not hold ends the start."""

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("sglang")


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SGLANG_PLATFORM": "cpu_reference", "OMP_NUM_THREADS": "1", **environment}
    env = {name: value for name, value in env.items() if name != "SGLANG_CP_CPU_MODE"}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, env=env, timeout=300
    )


def test_upstream_sees_the_kernels() -> None:
    done = run(
        """
        from sglang.srt.plugins import load_plugins
        from sglang.srt.managers import scheduler  # imported before the plugins, as in a spawned rank
        load_plugins()
        import sgl_kernel, sys, os
        from sgl_kernel.flash_mla import flash_mla_sparse_fwd
        from sglang.srt.layers.attention import dsa_backend
        from sglang.srt.layers.attention.dsa import dsa_indexer, triton_kernel
        from sglang.srt.mem_cache import memory_pool
        from sglang.srt.model_executor import forward_batch_info
        from sglang.srt.platforms import current_platform
        from sglang_cp.cpu_reference.kernels import launch, scoring, sparse_mla
        assert flash_mla_sparse_fwd is sparse_mla.flash_mla_sparse_fwd
        assert dsa_indexer.deep_gemm is dsa_backend.deep_gemm is scoring
        assert triton_kernel.act_quant.__wrapped__.__module__.startswith("sglang.")
        assert memory_pool.set_mla_kv_buffer_triton.__wrapped__ is not None  # reached modules that imported the name
        assert not forward_batch_info.support_triton("dsa")
        indexer = dsa_indexer.Indexer
        assert indexer._oot_forward_registry["native"][indexer] is indexer.forward_cuda
        assert current_platform.is_out_of_tree()
        assert "TRITON_INTERPRET" not in os.environ
        print("in place")
        """
    )
    assert done.stdout.strip().endswith("in place"), done.stderr[-3000:]


def test_a_name_that_upstream_lost_ends_the_start() -> None:
    done = run(
        """
        from sglang_cp.cpu_reference import hooks, install
        lost = hooks.Replacement("sglang.srt.utils.common.no_such_name", print, "a test", hooks.How.HOOK)
        install.REPLACEMENTS = (*hooks.REPLACEMENTS, lost)
        from sglang.srt.plugins import load_plugins
        load_plugins()
        print("started")
        """
    )
    assert done.returncode == 1
    assert "started" not in done.stdout
    assert "this SGLang has no sglang.srt.utils.common.no_such_name" in done.stderr.splitlines()[-1]


def test_a_hook_that_sglang_could_not_apply_ends_the_start() -> None:
    done = run(
        """
        from sglang.srt.plugins.hook_registry import HookRegistry
        apply_target = HookRegistry.__dict__["_apply_target"].__func__
        def refuse(cls, target, hooks):
            if target.endswith("act_quant"):
                raise RuntimeError("refused")  # apply_hooks only logs it
            return apply_target(cls, target, hooks)
        HookRegistry._apply_target = classmethod(refuse)
        from sglang.srt.plugins import load_plugins
        load_plugins()
        print("started")
        """
    )
    assert done.returncode == 1
    assert "act_quant was not replaced" in done.stderr.splitlines()[-1]


def test_a_plugin_that_was_left_out_ends_the_start() -> None:
    done = run(
        """
        from sglang.srt.plugins import load_plugins
        load_plugins()
        from sglang.srt.platforms import current_platform
        current_platform.apply_server_args_defaults(None)
        """,
        SGLANG_PLUGINS="another",
    )
    assert done.returncode == 1
    assert "kernels are not in place" in done.stderr.splitlines()[-1]


def test_nothing_heavy_is_imported_for_another_platform() -> None:
    done = run(
        """
        import sys
        import sglang_cp.cpu_reference
        from sglang_cp.cpu_reference.plugin import register
        register()
        assert sglang_cp.cpu_reference.activate() is None
        assert not {"torch", "sglang", "sgl_kernel"} & set(sys.modules), "heavy"
        """,
        SGLANG_PLATFORM="",
    )
    assert done.returncode == 0, done.stderr
