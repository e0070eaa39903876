"""Server arguments: what was not given is filled in, what was given stands or is refused."""

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_cp.cpu_reference import defaults
from sglang_cp.cpu_reference.settings import Mode, SettingsError

pytest.importorskip("sglang")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_CP_CPU_MODE", raising=False)


def server_args(**given: Any) -> SimpleNamespace:
    """The fields that the platform reads, as an unadorned command line leaves them."""
    phase = lambda: SimpleNamespace(backend="full")  # noqa: E731
    return SimpleNamespace(
        **{
            "dtype": "auto",
            "device": "cpu",
            "attention_backend": None,
            "prefill_attention_backend": None,
            "decode_attention_backend": None,
            "dsa_prefill_backend": None,
            "dsa_decode_backend": None,
            "dsa_topk_backend": "sgl-kernel",
            "dsa_paged_mqa_logits_backend": "auto",
            "sampling_backend": None,
            "kv_cache_dtype": "auto",
            "max_total_tokens": None,
            "chunked_prefill_size": None,
            "disable_custom_all_reduce": False,
            "sleep_on_idle": False,
            "speculative_algorithm": None,
            "speculative_use_rejection_sampling": False,
            "enable_torch_compile": False,
            "cuda_graph_config": SimpleNamespace(decode=phase(), prefill=phase()),
            **given,
        }
    )


def test_a_bare_command_line_gets_everything_it_needs() -> None:
    args = server_args()
    assert defaults.apply(args) is Mode.FAITHFUL
    assert (args.attention_backend, args.dsa_prefill_backend, args.dsa_decode_backend) == (
        "dsa",
        "flashmla_sparse",
        "flashmla_sparse",
    )
    assert args.dtype == "bfloat16"
    assert args.cuda_graph_config.decode.backend == args.cuda_graph_config.prefill.backend == "disabled"
    assert args.disable_custom_all_reduce
    assert args.max_total_tokens > 0


def test_float32_chooses_the_exact_mode() -> None:
    assert defaults.apply(server_args(dtype="float32")) is Mode.EXACT


def test_given_values_stand() -> None:
    args = server_args(max_total_tokens=1024, chunked_prefill_size=128, attention_backend="dsa")
    defaults.apply(args)
    assert (args.max_total_tokens, args.chunked_prefill_size) == (1024, 128)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("device", "cuda"),
        ("attention_backend", "triton"),
        ("decode_attention_backend", "fa3"),
        ("dsa_prefill_backend", "tilelang"),
        ("dsa_decode_backend", "flashmla_kv"),
        ("sampling_backend", "flashinfer"),
        ("kv_cache_dtype", "fp8_e4m3"),
        ("dsa_topk_backend", "flashinfer"),
        ("dsa_paged_mqa_logits_backend", "aiter"),
        ("speculative_algorithm", "NGRAM"),
        ("speculative_use_rejection_sampling", True),
        ("enable_torch_compile", True),
        ("dtype", "float16"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_changes(name: str, value: Any) -> None:
    args = server_args(**{name: value})
    before = vars(args).copy()
    flag = "--" + name.replace("_", "-")
    with pytest.raises(SettingsError, match=flag):
        defaults.apply(args)
    assert vars(args) == before


def test_an_unusable_nominal_memory_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_CP_CPU_MEMORY_MIB", "plenty")
    args = server_args()
    before = vars(args).copy()
    with pytest.raises(SettingsError, match="SGLANG_CP_CPU_MEMORY_MIB='plenty'"):
        defaults.apply(args)
    assert vars(args) == before
