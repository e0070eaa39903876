"""The comparison of running servers on hardware that rounds, against servers that are made up."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evals import gpu_parity
from sglang_cp.errors import UsageError

RUNNER = CliRunner()
TOPK = 100


class FakeServer:
    """Answers with logprobs that scatter by ``noise`` nats beyond TOPK; ``url`` says how it misbehaves."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self.extends = 0
        self.cache: list[list[int]] = []
        self.draw = random.Random(url)

    def close(self) -> None: ...

    def flush_cache(self) -> None:
        self.cache.clear()

    def counters(self) -> dict[str, int] | None:
        return {"cp_extends": self.extends} if "cp" in self.url else None

    def require_room(self, prompt_tokens: int, answer_tokens: int, way_out: str) -> None:
        if prompt_tokens > 10_000:
            raise UsageError(f"{prompt_tokens} tokens do not fit: use {way_out}.")

    def generate(self, input_ids: list[int], sampling_params: dict[str, Any], **more: Any) -> dict[str, Any]:
        if "idle" not in self.url:
            self.extends += 1
        hit = max((len(known) for known in self.cache if input_ids[: len(known)] == known), default=0)
        cached = min(hit, more.get("logprob_start_len", hit))
        self.cache.append(input_ids)
        noise = 3.0 if "wrong" in self.url else 0.01
        if len(input_ids) <= TOPK and "wrong" not in self.url:
            noise = 0.0
        asked = len(input_ids) - more.get("logprob_start_len", len(input_ids))
        entries = [(-5 + self.draw.gauss(0, noise), 1, None) for _ in range(asked)]
        tokens = [7] * sampling_params["max_new_tokens"]
        meta = {
            "output_token_logprobs": [(-1.0, token, None) for token in tokens],
            "input_token_logprobs": entries,
            "cached_tokens": 0 if "forgetful" in self.url else cached,
        }
        return {"output_ids": tokens, "meta_info": meta}


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_parity, "GivenServer", FakeServer)


def run(*args: str) -> Any:
    import typer

    app = typer.Typer()
    app.command()(gpu_parity.main)
    common = ["--off", "http://off", "--index-topk", str(TOPK), "--lengths", "2,99,100,101,300,701"]
    return RUNNER.invoke(app, [*common, *args])


def test_a_candidate_within_plain_tps_own_noise_passes_and_the_figures_are_written(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"

    result = run("--candidate", "mine=http://cp", "--tp1", "http://one", "--output", str(output))

    assert result.exit_code == 0, result.output
    written = json.loads(output.read_text())
    assert written["problems"] == []
    # Three ways of asking, two kinds of prompts, and off again, tp 1 and the candidate against off.
    assert len(written["figures"]) == 3 * 2 * 3
    assert written["figures"]["alone <= top-k, mine"]["mean_nats"] == 0
    assert 0 < written["figures"]["concurrent > top-k, mine"]["mean_nats"] < 0.1


@pytest.mark.parametrize(
    ("url", "sentence"),
    [("http://cp-wrong", "input logprobs differ"), ("http://cp-idle", "CP did not take part")],
)
def test_a_candidate_that_differs_or_never_deals_out_fails(url: str, sentence: str) -> None:
    result = run("--candidate", f"mine={url}")

    assert result.exit_code == 1
    assert sentence in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--candidate", "http://cp"], "NAME=URL"),
        (["--candidate", "off=http://cp"], "name of its own"),
        (["--candidate", "a=http://cp", "--candidate", "a=http://cp"], "name of its own"),
        (["--candidate", "a=http://cp", "--lengths", "1,x"], "no list of token numbers"),
        (["--candidate", "a=http://cp", "--lengths", "0"], "no list of token numbers"),
        (["--candidate", "a=http://cp", "--lengths", "20000"], "shorter --lengths"),
        (["--candidate", "a=http://cp", "--output", "/no/where/x.json"], "cannot be written"),
        (["--candidate", "a=http://cp-forgetful"], "without --disable-radix-cache"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(args: list[str], sentence: str) -> None:
    result = run(*args)

    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())
    assert "Traceback" not in result.output
