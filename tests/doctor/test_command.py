from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from sglang_cp.doctor import machine as machines
from sglang_cp.doctor.command import doctor
from sglang_cp.doctor.estimate import GIB
from sglang_cp.errors import UsageError


@pytest.fixture
def model(tmp_path: Path, glm_mxfp4) -> str:
    (tmp_path / "config.json").write_text(json.dumps(glm_mxfp4), encoding="utf-8")
    return str(tmp_path)


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(doctor)
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch, machine) -> None:
    monkeypatch.setattr(machines, "examine", lambda: machine)


@pytest.mark.usefixtures("healthy")
def test_screen_of_a_good_launch(model: str) -> None:
    result = run("--model-path", model, "--speculative-algorithm", "EAGLE")
    assert result.exit_code == 0, result.output
    lines = {re.split(r"\s{2,}", line)[0]: line.split()[-3:] for line in result.output.splitlines()}
    assert lines["weights"] == ["101.19", "119.97", "101.19"]
    assert lines["KV pool, tokens"] == ["1,469,440", "1,268,288", "1,463,552"]
    for words in ("AMD Instinct MI355X, gfx950, 288.0 GiB", "symmetric memory (nothing", "No problem found", "tp 4"):
        assert words in result.output


@pytest.mark.usefixtures("healthy")
def test_problems_are_listed_and_the_exit_code_is_1(model: str) -> None:
    result = run("--model-path", model, "--tp-size", "8", "--gpu-memory-gb", "24")
    assert result.exit_code == 1
    problems = [line for line in result.output.splitlines() if line.startswith("PROBLEM")]
    assert len(problems) == 2
    assert "--tp-size 8 needs as many GPUs" in problems[0]
    assert "no room for the KV pool" in problems[1]
    assert "No problem found" not in result.output


def test_without_gpu_and_model_the_screen_is_complete(monkeypatch: pytest.MonkeyPatch, no_gpu) -> None:
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    monkeypatch.setattr(machines, "examine", lambda: no_gpu)
    result = run()
    assert result.exit_code == 1
    for name in ("Patches", "GPUs", "Peer access", "Symmetric memory", "AITER", "Shard source", "Memory estimate"):
        assert f"{name} " in result.output
    assert result.output.count("not available: No HIP GPUs are available") == 3


def test_without_gpu_a_launch_can_be_planned(monkeypatch: pytest.MonkeyPatch, no_gpu, model: str) -> None:
    monkeypatch.setattr(machines, "examine", lambda: no_gpu)
    monkeypatch.setenv("SGLANG_PLATFORM", "other")
    planned = run("--model-path", model, "--tp-size", "4", "--gpu-memory-gb", "288")
    assert planned.exit_code == 0
    assert "KV pool, tokens" in planned.output
    as_json = run("--model-path", model, "--tp-size", "4", "--gpu-memory-gb", "141.5", "--json")
    assert json.loads(as_json.output)["serving"]["gpu_memory_bytes"] == int(141.5 * GIB)
    unknown = run("--model-path", model, "--tp-size", "4")
    assert "KV pool, tokens" not in unknown.output
    assert "Name --gpu-memory-gb" in unknown.output


@pytest.mark.usefixtures("healthy")
def test_quantization_that_is_unknown_leaves_the_rest(tmp_path: Path, glm_bf16) -> None:
    config = glm_bf16 | {"quantization_config": {"quant_method": "awq"}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    result = run("--model-path", str(tmp_path))
    assert result.exit_code == 0
    assert "not available: Quantization 'awq'" in result.output


@pytest.mark.usefixtures("healthy")
def test_json_has_the_same_facts(model: str) -> None:
    result = run("--model-path", model, "--json", "--kv-cache-dtype", "fp8_e4m3", "--cp-shard-source", "process-group")
    report = json.loads(result.output)
    assert report["problems"] == []
    assert report["source"]["value"][0] == "process group"
    assert report["machine"]["gpus"]["value"][3]["memory_bytes"] == 288 * GIB
    assert report["serving"]["kv_cache_dtype"] == "fp8_e4m3"
    off = report["arms"]["value"]["off"]
    assert off["static_bytes"] == off["weight_bytes"] == sum(off["weights"].values())
    assert off["pool_tokens"] == (int(288 * GIB * 0.85) - off["static_bytes"]) // (708 * 78) // 64 * 64


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model-path", "/nowhere"), "/nowhere/config.json cannot be read"),
        (("--mem-fraction-static", "1.5"), "between 0 and 1"),
        (("--gpu-memory-gb", "0"), "give a GPU's memory"),
    ],
)
def test_bad_input_is_refused_before_anything_is_examined(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.setattr(machines, "examine", lambda: pytest.fail("examined"))
    result = run(*arguments)
    assert isinstance(result.exception, UsageError)
    assert words in str(result.exception)
    assert result.output == ""


@pytest.mark.parametrize(("content", "words"), [("{", "is not JSON"), ("[1]", "holds no JSON object")])
def test_a_broken_config_is_refused(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    assert words in str(run("--model-path", str(tmp_path)).exception)


def test_a_model_on_an_unknown_number_of_ranks_is_refused(monkeypatch: pytest.MonkeyPatch, no_gpu, model: str) -> None:
    monkeypatch.setattr(machines, "examine", lambda: no_gpu)
    assert "say with --tp-size" in str(run("--model-path", model).exception)


@pytest.mark.parametrize("arguments", [("--tp-size", "0"), ("--kv-cache-dtype", "int3"), ("--cp-shard-source", "disk")])
def test_unknown_values_exit_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_the_real_machine_is_examined_without_sglang() -> None:
    code = (
        "import sys, typer\n"
        "from sglang_cp.doctor.command import doctor\n"
        "app = typer.Typer()\n"
        "app.command()(doctor)\n"
        "code = app(['--json'], standalone_mode=False)\n"
        "sys.exit(f'{code}' if 'sglang' in sys.modules or code not in (0, 1) else 0)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "SGLANG_PLATFORM"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["machine"]["patches"]["value"]
    assert [version["matches"] for version in report["machine"]["versions"][:5]] == [True] * 5


WRONG_CONFIGS = {
    "heads are a list": {"num_attention_heads": [1]},
    "heads are null": {"num_attention_heads": None},
    "heads are a word": {"num_attention_heads": "x"},
    "heads are zero": {"num_attention_heads": 0},
    "layers without end": {"num_hidden_layers": 10**30},
    "format is a word": {"quantization_config": "x"},
    "block is a word": {"quantization_config": {"quant_method": "fp8", "weight_block_size": "a"}},
    "block of zeros": {"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 0]}},
    "one architecture": {"architectures": "GlmMoeDsaForCausalLM"},
}


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize("change", WRONG_CONFIGS.values(), ids=WRONG_CONFIGS)
def test_a_config_that_no_loader_could_read_is_one_sentence(model: str, glm_mxfp4, change: dict[str, object]) -> None:
    (Path(model) / "config.json").write_text(json.dumps({**glm_mxfp4, **change}), encoding="utf-8")
    result = run("--model-path", model, "--tp-size", "4")
    assert isinstance(result.exception, UsageError)
    assert "config.json cannot be used" in str(result.exception)


@pytest.mark.usefixtures("healthy")
def test_json_too_deep_to_read_is_one_sentence(model: str) -> None:
    (Path(model) / "config.json").write_text("[" * 200_000, encoding="utf-8")
    assert "is not JSON" in str(run("--model-path", model).exception)


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize("memory", ["inf", "nan", "1e300", "0"])
def test_a_memory_that_no_gpu_has_is_refused(model: str, memory: str) -> None:
    assert "give a GPU's memory" in str(run("--model-path", model, "--gpu-memory-gb", memory).exception)
