"""GSM8K through lm-eval against fake servers: scores, comparison, CP's part, and what is refused."""

import gc
import threading

import pytest

from evals import gsm8k
from tests.evals import questions
from tests.evals.accuracy_cli import run
from tests.evals.fake_sglang import FakeSGLang, OutOfMemory, solve

WIDE = ["--margin", "0.3"]
"""Twelve questions that are answered alike leave room for 24 points."""


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    return questions.write(folder)


def evaluate(folder, data, *arms, shots="2", extra=()):
    urls = [part for arm in arms for part in ("--candidate" if arm._cp else "--baseline", arm.url)]
    known = ["--data", str(data), "--shots", shots, "--index-topk", "100"]
    return run(gsm8k.main, [*urls, *known, *extra], folder)


def test_equal_arms_of_which_one_has_cp(tmp_path, data):
    with FakeSGLang(cp=False) as off, FakeSGLang(cp=True) as on:
        outcome = evaluate(tmp_path, data, off, on, shots="0,2", extra=[*WIDE, "--index-topk", "104"])
    assert outcome.exit_code == 0, outcome.said
    assert "The arms are equal within 30.0 points, and CP took part in every run." in outcome.said
    report = outcome.report
    assert report["problems"] == []
    assert report["examples_from"] == "train"
    assert report["same_answers"] == {"0-shot": 12, "2-shot": 12}
    assert report["scores"]["candidate"]["2-shot"]["strict-match"] == {"score": 1.0, "stderr": 0.0}
    assert [comparison["name"] for comparison in report["comparisons"]] == [
        f"{run} {metric}" for run in ("0-shot", "2-shot") for metric in ("strict-match", "flexible-extract")
    ]
    assert {comparison["verdict"] for comparison in report["comparisons"]} == {"equal"}
    assert {comparison["alpha"] for comparison in report["comparisons"]} == {0.05 / 4}

    # Both arms were asked the same; each question once a run, after two examples of the train split or none.
    assert sorted(off.prompts) == sorted(on.prompts)
    assert len(on.prompts) == 24
    for prompt in on.prompts:
        asked = prompt.split("Question: ")[1:]
        assert len(asked) in (1, 3)
        assert asked[-1].removesuffix("\nAnswer:") in {row["question"] for row in questions.TEST}
        assert all(shown.split("\nAnswer:")[0] in {r["question"] for r in questions.TRAIN} for shown in asked[:-1])

    # 0-shot prompts are a little shorter or longer than index_topk, 2-shot ones much longer.
    parts = report["participation"]["candidate"]
    lengths = [len(prompt.encode()) for prompt in on.prompts if prompt.count("Question: ") == 1]
    assert 0 < parts["0-shot"]["prompts_over_topk"] == sum(length > 104 for length in lengths) < 12
    assert parts["2-shot"]["share_over_topk"] == 1.0
    assert parts["2-shot"]["counters"]["cp_extends"] == 12
    assert report["participation"]["baseline"]["2-shot"]["counters"]["cp_extends"] == 0


def test_without_a_train_file_no_question_sees_itself(tmp_path):
    data = tmp_path / "test-only"
    data.mkdir()
    with FakeSGLang(cp=True) as on:
        outcome = evaluate(tmp_path, questions.write(data, train=False), on, shots="11")
    assert outcome.exit_code == 0, outcome.said
    assert outcome.report["examples_from"] == "test"
    for prompt in on.prompts:
        asked = [part.split("\nAnswer:")[0] for part in prompt.split("Question: ")[1:]]
        assert len(set(asked)) == 12
    with FakeSGLang(cp=True) as on:
        refused = evaluate(tmp_path, data, on, shots="12")
    assert refused.exit_code == 2
    assert "--shots 12 is too many: the test split has 11 examples." in refused.said


def test_one_arm_is_only_scored(tmp_path, data):
    def half(prompt):
        right = solve(prompt)
        return right if "Boris" in prompt.rsplit("Question: ", 1)[1] else right.replace("####", "So: ")

    with FakeSGLang(cp=False, counts=None, answer=half) as off:
        outcome = evaluate(tmp_path, data, off, extra=["--limit", "4", "--concurrency", "1"])
    assert outcome.exit_code == 0, outcome.said
    assert outcome.report["comparisons"] == []
    score = outcome.report["scores"]["baseline"]["2-shot"]
    assert score["strict-match"] == {"score": 0.25, "stderr": 0.25}  # sqrt(0.25 * 0.75 / 3)
    assert score["flexible-extract"]["score"] == 1.0
    assert outcome.report["participation"]["baseline"]["2-shot"]["counters"] is None


def test_arms_that_differ_fail(tmp_path, data):
    with FakeSGLang(cp=False) as off, FakeSGLang(cp=True, answer=lambda _: " #### 1") as on:
        outcome = evaluate(tmp_path, data, off, on, extra=["--margin", "0.9"])
    assert outcome.exit_code == 1
    assert "2-shot strict-match: the arms differ by -100.0 points (McNemar p = 4.9e-04 < 2.5e-02)." in outcome.said
    assert [c["paired"]["baseline_only"] for c in outcome.report["comparisons"]] == [12, 12]
    assert outcome.report["same_answers"] == {"2-shot": 0}


def test_too_few_questions_do_not_show_that_arms_are_equal(tmp_path, data):
    with FakeSGLang(cp=False) as off, FakeSGLang(cp=True) as on:
        outcome = evaluate(tmp_path, data, off, on)
    assert outcome.exit_code == 1
    assert (
        "2-shot strict-match: not shown to be equal: the interval of the difference, -24.2 to +24.2 points, reaches "
        "beyond the margin of 2.0: ask more questions."
    ) in outcome.said


@pytest.mark.parametrize(
    ("candidate", "sentence"),
    [
        ({"counts": False}, "2-shot: no extend was dealt out: CP did not take part."),
        ({"index_topk": 10_000}, "CP: top-k dropped no key of any extend"),
    ],
)
def test_equal_scores_without_cp_fail(tmp_path, data, candidate, sentence):
    with FakeSGLang(cp=False) as off, FakeSGLang(cp=True, **candidate) as on:
        outcome = evaluate(tmp_path, data, off, on, extra=WIDE)
    assert outcome.exit_code == 1
    assert sentence in outcome.said
    assert {comparison["verdict"] for comparison in outcome.report["comparisons"]} == {"equal"}


REFUSED = [
    ([], "No server is given: pass --candidate URL (CP on), --baseline URL (CP off), or both."),
    (["--candidate", "OFF"], "runs with CP off: start it with --enable-prefill-cp."),
    (["--baseline", "ON"], "runs with CP on: give a server without --enable-prefill-cp."),
    (["--candidate", "PLAIN"], "reports no CP counters: it runs without sglang-cp"),
    (["--candidate", "http://127.0.0.1:9"], "candidate at http://127.0.0.1:9 does not answer"),
    (["--candidate", "localhost:9"], "candidate at localhost:9 does not answer /server_info"),
    (["--candidate", "ON", "--shots", "20"], "--shots 20 is too many: the train split has 12 examples."),
    (["--candidate", "ON", "--shots", "two"], "--shots two is not understood: give whole numbers of at least 0"),
    (["--candidate", "ON", "--margin", "2"], "--margin 2.0 is not a share: give a number between 0 and 1."),
    (["--candidate", "ON", "--alpha", "nan"], "--alpha nan is not a share"),
    (["--candidate", "ON", "--data", "/nowhere"], "--data /nowhere holds no test.jsonl"),
    (["--candidate", "ON", "--output", "/nowhere/x.json"], "/nowhere is not a directory"),
    (["--candidate", "ON", "--output", "/tmp"], "--output /tmp cannot be written: /tmp is a directory."),
    (["--candidate", "ON", "--answer-tokens", "99800"], "use fewer --shots or a longer --context-length."),
    (["--baseline", "OFF", "--candidate", "OTHER"], "tokenize the same text differently"),
    (["--candidate", "LOST"], "index_topk of /nowhere cannot be read here: pass --index-topk"),
    (["--candidate", "ON", "--limit", "1"], "Invalid value for '--limit'"),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_unusable_input_is_refused_and_nothing_is_asked_or_written(tmp_path, data, arguments, sentence):
    fakes = {
        "OFF": FakeSGLang(cp=False),
        "ON": FakeSGLang(cp=True),
        "PLAIN": FakeSGLang(cp=True, counts=None),
        "OTHER": FakeSGLang(cp=True, shift=1),
        "LOST": FakeSGLang(cp=True),
    }
    used = [fakes[part] for part in arguments if part in fakes]
    known = [] if "LOST" in arguments else ["--index-topk", "100"]
    for fake in used:
        fake.__enter__()
    try:
        given = [fakes[part].url if part in fakes else part for part in arguments]
        outcome = run(gsm8k.main, ["--data", str(data), "--shots", "2", *known, *given], tmp_path)
    finally:
        for fake in used:
            fake.__exit__()
    assert outcome.exit_code == 2
    assert sentence in outcome.said
    assert outcome.report is None
    assert not any(fake.prompts for fake in used)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "test.jsonl is empty."),
        (
            '{"question": "Q", "answer": "#### 1"}\n{"question": "Q"}\n',
            "test.jsonl, line 2, is no GSM8K question",
        ),
        ('{"question": "Q", "answer": "1"}\n', "test.jsonl, line 1, is no GSM8K question"),
        ("[]\n", "test.jsonl, line 1, is no GSM8K question"),
    ],
)
def test_a_file_that_is_not_gsm8k_is_named_with_its_line(tmp_path, data, content, sentence):
    (data / "test.jsonl").write_text(content)
    outcome = run(gsm8k.main, ["--data", str(data), "--candidate", "http://127.0.0.1:9"], tmp_path)
    assert outcome.exit_code == 2
    assert sentence in outcome.said


def test_as_many_requests_run_at_a_time_as_were_asked_for(tmp_path, data):
    all_here = threading.Barrier(4)

    def together(prompt):
        all_here.wait(timeout=20)
        return solve(prompt)

    with FakeSGLang(cp=True, answer=together) as on:
        outcome = evaluate(tmp_path, data, on, extra=["--limit", "8", "--concurrency", "4"])
    assert outcome.exit_code == 0, outcome.said


@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_a_server_that_fails_half_way_ends_the_run(tmp_path, data, concurrency, caplog):
    def fail(_prompt):
        raise OutOfMemory

    with FakeSGLang(cp=True, answer=fail) as on:
        outcome = evaluate(tmp_path, data, on, extra=["--limit", "2", "--concurrency", concurrency])
    assert outcome.exit_code == 2
    assert f"candidate at {on.url} failed on /v1/completions:" in outcome.said
    assert "500" in outcome.said
    assert outcome.report is None
    gc.collect()  # asyncio reports the other tasks' failures when they are collected
    assert caplog.text == ""


def test_the_hub_out_of_reach_is_a_sentence(tmp_path, monkeypatch):
    def unreachable(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with FakeSGLang(cp=True) as on:
        outcome = run(gsm8k.main, ["--candidate", on.url, "--index-topk", "100"], tmp_path)
    assert outcome.exit_code == 2
    assert "GSM8K cannot be loaded from the hub: pass --data" in outcome.said
