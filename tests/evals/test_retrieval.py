"""Needles through fake servers: what is asked, what is right, comparison, CP's part, and what is refused."""

import json
import re
import threading

import pytest

from evals import retrieval
from tests.evals.accuracy_cli import run
from tests.evals.fake_sglang import FakeSGLang, OutOfMemory, solve

SMALL = ["--lengths", "800,500", "--depths", "0,50,100", "--samples", "4", "--index-topk", "100"]
WIDE = ["--margin", "0.2"]
"""Twenty-four questions that are answered alike leave room for 14 points."""


def evaluate(folder, *arms, extra=()):
    urls = [part for arm in arms for part in ("--candidate" if arm._cp else "--baseline", arm.url)]
    return run(retrieval.main, [*urls, *SMALL, *extra], folder)


def misses_the_deep(prompt):
    """Right unless the needle lies in the last tenth of the prompt."""
    asked = re.search(r"The secret number of (\w+) is$", prompt)[1]
    return "?" if prompt.index(f"number of {asked} is ") > 0.75 * len(prompt) else solve(prompt)


def found(outcome, arm):
    return {(cell["length"], cell["depth"]): cell["share"] for cell in outcome.report["found"][arm]}


def test_equal_arms_of_which_one_has_cp(tmp_path):
    plot = tmp_path / "heat.png"
    with FakeSGLang(cp=False) as off, FakeSGLang(cp=True) as on:
        outcome = evaluate(tmp_path, off, on, extra=[*WIDE, "--plot", str(plot)])
    assert outcome.exit_code == 0, outcome.said
    assert sorted(off.prompts) == sorted(on.prompts)
    assert sorted(len(prompt.encode()) for prompt in on.prompts) == [500] * 12 + [800] * 12
    # Nothing that the radix cache could hold of another prompt but the opening and some of the first needle.
    assert len({prompt[:200] for prompt in on.prompts}) == 24
    assert found(outcome, "candidate") == {(length, depth): 1 for length in (500, 800) for depth in (0, 50, 100)}
    assert outcome.report["participation"]["candidate"]["500 tokens"]["counters"]["cp_rows"] == 12 * 500
    assert outcome.report["comparisons"][0]["verdict"] == "equal"
    assert "neither arm" not in outcome.said
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_depth_at_which_an_arm_fails_is_seen(tmp_path):
    with FakeSGLang(cp=False) as off, FakeSGLang(cp=True, answer=misses_the_deep) as on:
        outcome = evaluate(tmp_path, off, on)
    assert outcome.exit_code == 1
    assert "needles found: the arms differ by -33.3 points (McNemar p = 7.8e-03 < 5.0e-02)." in outcome.said
    assert set(found(outcome, "baseline").values()) == {1}
    assert {cell for cell, share in found(outcome, "candidate").items() if share == 0} == {(500, 100), (800, 100)}
    assert re.search(r"100 │ 100 / 0 │ 100 / 0", outcome.said)
    missed = [answer for answer in outcome.report["answers"]["candidate"] if answer["answer"] == "?"]
    assert len(missed) == 8


def test_arms_that_are_equal_because_both_fail_are_called_so(tmp_path):
    with FakeSGLang(cp=False, answer=lambda _: "?") as off, FakeSGLang(cp=True, answer=lambda _: "?") as on:
        outcome = evaluate(tmp_path, off, on, extra=WIDE)
    assert outcome.exit_code == 0
    assert "needles found: neither arm got any right, so equal scores say little." in outcome.said


def test_the_same_seed_asks_the_same(tmp_path):
    asked = []
    for seed in ("1", "1", "2"):
        with FakeSGLang(cp=True) as on:
            assert evaluate(tmp_path, on, extra=["--seed", seed]).exit_code == 0
            asked.append(sorted(on.prompts))
    assert asked[0] == asked[1] != asked[2]


def test_the_text_of_the_user_is_the_haystack(tmp_path):
    text = tmp_path / "book.txt"
    text.write_text("naïve " * 10)
    with FakeSGLang(cp=False) as off:
        assert evaluate(tmp_path, off, extra=["--text", str(text)]).exit_code == 0
    assert all("naïve naïve naïve" in prompt for prompt in off.prompts)


@pytest.mark.parametrize(
    ("candidate", "sentence"),
    [
        ({"counts": False}, "500 tokens: no extend was dealt out: CP did not take part."),
        ({"index_topk": 10_000}, "CP: top-k dropped no key of any extend"),
    ],
)
def test_equal_answers_without_cp_fail(tmp_path, candidate, sentence):
    with FakeSGLang(cp=False) as off, FakeSGLang(cp=True, **candidate) as on:
        outcome = evaluate(tmp_path, off, on, extra=WIDE)
    assert outcome.exit_code == 1
    assert sentence in outcome.said
    assert outcome.report["comparisons"][0]["verdict"] == "equal"


def test_index_topk_comes_from_the_model_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "glm_moe_dsa", "index_topk": 640}))
    with FakeSGLang(cp=True, model_path=str(tmp_path)) as on:
        outcome = run(retrieval.main, ["--candidate", on.url, *SMALL[:-2]], tmp_path)
    assert outcome.exit_code == 0, outcome.said
    parts = outcome.report["participation"]["candidate"]
    assert [parts[name]["prompts_over_topk"] for name in ("500 tokens", "800 tokens")] == [0, 12]


REFUSED = [
    (["--lengths", "100001"], "candidate takes prompts of up to 99,984 tokens with 16 of answer (context: 100,000)"),
    (["--lengths", "99985"], "but there is one of 99,985: use shorter --lengths or a longer --context-length."),
    (["--lengths", "8K"], "--lengths 8K is not understood: give whole numbers of at least 1, separated by commas."),
    (["--lengths", "300"], "--lengths 300 is too short for 3 needles, which need"),
    (["--depths", "0,101"], "--depths 0,101 is not understood: give whole numbers from 0 to 100"),
    (["--depths", ",".join(map(str, range(30)))], "--depths names 30 depths: give at most 22."),
    (["--text", "/nowhere"], "--text /nowhere cannot be read as UTF-8 text"),
    (["--text", "EMPTY"], "is empty: give a text, best a book."),
    (["--plot", "/nowhere/x.png"], "/nowhere is not a directory"),
    (["--plot", "/tmp/x.pdf"], "--plot /tmp/x.pdf is no PNG: let its name end in .png."),
    (["--margin", "0"], "--margin 0.0 is not a share"),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_unusable_input_is_refused_and_nothing_is_asked_or_written(tmp_path, arguments, sentence):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    with FakeSGLang(cp=True) as on:
        outcome = evaluate(tmp_path, on, extra=[str(empty) if part == "EMPTY" else part for part in arguments])
    assert outcome.exit_code == 2
    assert sentence in outcome.said
    assert outcome.report is None
    assert on.prompts == []


def test_as_many_requests_run_at_a_time_as_were_asked_for(tmp_path):
    all_here = threading.Barrier(3)

    def together(prompt):
        all_here.wait(timeout=20)
        return solve(prompt)

    with FakeSGLang(cp=True, answer=together) as on:
        outcome = evaluate(tmp_path, on, extra=["--concurrency", "3"])
    assert outcome.exit_code == 0, outcome.said


def test_a_server_that_fails_half_way_ends_the_run(tmp_path):
    def fail(_prompt):
        raise OutOfMemory

    with FakeSGLang(cp=True, answer=fail) as on:
        outcome = evaluate(tmp_path, on, extra=["--plot", str(tmp_path / "heat.png")])
    assert outcome.exit_code == 2
    assert "candidate answered 500 to /generate" in outcome.said
    assert outcome.report is None
    assert not (tmp_path / "heat.png").exists()
