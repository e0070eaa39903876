"""Patched Triton kernels, compiled for gfx950 and for Hopper without either GPU."""

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

GFX950, HOPPER = GPUTarget("hip", "gfx950", 64), GPUTarget("cuda", 90, 32)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled(kernel, pointers, constants, target):
    """``pointers``: name -> type; ``constants``: the constexprs."""
    positions = {name: index for index, name in enumerate(kernel.arg_names)}
    signature = {name: pointers.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, {(positions[name],): value for name, value in constants.items()})
    return triton.compile(source, target=target)


def mha_k(heads, nope, rope, target):
    from sglang.srt.layers.attention.triton_ops.cache_ops import concat_and_cast_mha_k_kernel

    sizes = {"head_cnt": heads, "nope_dim": nope, "rope_dim": rope}
    strides = {
        "k_stride0": heads * (nope + rope),
        "k_stride1": nope + rope,
        "nope_stride0": heads * nope,
        "nope_stride1": nope,
        "rope_stride0": rope,
    }
    blocks = {
        "head_block": triton.next_power_of_2(heads),
        "nope_block": triton.next_power_of_2(nope),
        "rope_block": triton.next_power_of_2(rope),
    }
    pointers = dict.fromkeys(("k_ptr", "k_nope_ptr", "k_rope_ptr"), "*bf16")
    return compiled(concat_and_cast_mha_k_kernel, pointers, sizes | strides | blocks, target)


def k_cache(min_scale, target):
    from sglang.srt.layers.attention.dsa.quant_k_cache import _quantize_k_cache_fast_kernel as kernel

    pointers = {
        "output_nope_q_ptr": "*fp8e4nv",
        "output_nope_s_ptr": "*fp32",
        "output_rope_ptr": "*bf16",
        "k_nope_ptr": "*bf16",
        "k_rope_ptr": "*bf16",
    } | {name: "i32" for name in kernel.arg_names if "stride" in name}
    constants = {
        "NUM_NOPE_BLOCKS": 4,
        "GROUP_SIZE": 128,
        "DIM_NOPE": 512,
        "DIM_ROPE": 64,
        "FP8_MIN": -448.0,
        "FP8_MAX": 448.0,
        "MIN_SCALE": min_scale,
    }
    return compiled(kernel, pointers, constants, target)


def test_glm_sizes_compile_for_gfx950():
    assert "amdgcn" in mha_k(16, 192, 64, GFX950).asm


def test_powers_of_two_are_not_masked():
    assert "cmpi" in mha_k(16, 192, 64, HOPPER).asm["ttir"]
    assert "cmpi" not in mha_k(16, 128, 64, HOPPER).asm["ttir"]


def test_the_smallest_scale_is_in_the_rocm_kernel_only():
    least = "9.99999996E-13"
    assert least in k_cache(1e-12, GFX950).asm["ttir"]
    assert least not in k_cache(0.0, HOPPER).asm["ttir"]


def test_without_a_gpu_of_amd_there_is_no_smallest_scale():
    from sglang.srt.layers.attention.dsa import quant_k_cache

    assert quant_k_cache._MIN_SCALE == 0.0


def test_a_new_number_of_rows_compiles_nothing():
    from sglang.srt.layers.attention.dsa.triton_kernel import _get_valid_kv_indices_kernel as kernel

    assert [parameter.name for parameter in kernel.params if parameter.is_constexpr] == ["topk"]
