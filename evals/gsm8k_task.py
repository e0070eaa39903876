"""lm-eval's own gsm8k task: from local files or the hub, put to a running server."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from evals.server import Server, ServerError
from sglang_cp.errors import UsageError

METRICS = ("strict-match", "flexible-extract")
"""The task's two ways of reading an answer: the number after ####, the last number."""

_TIMEOUT_S = 600
Row = dict[str, str]


@dataclass(frozen=True)
class Questions:
    """GSM8K from local files.

    Attributes:
        test: what is asked.
        train: where few-shot examples come from; empty if there is no such file, and then they come from ``test``,
            of which lm-eval leaves out the question that is asked.
    """

    test: list[Row]
    train: list[Row]

    @property
    def fewshot_split(self) -> str:
        return "train" if self.train else "test"

    @classmethod
    def read(cls, folder: Path) -> Questions:
        """From test.jsonl and, if there, train*.jsonl. Raises UsageError for missing or malformed files."""
        if not (folder / "test.jsonl").is_file():
            raise UsageError(f"--data {folder} holds no test.jsonl: give a folder with GSM8K's test.jsonl.")
        train = [row for path in sorted(folder.glob("train*.jsonl")) for row in _rows(path)]
        return cls(_rows(folder / "test.jsonl"), train)

    def require_shots(self, shots: int) -> None:
        """Raise UsageError unless there are so many examples besides the question."""
        available = len(self.train) or len(self.test) - 1
        if shots > available:
            raise UsageError(f"--shots {shots} is too many: the {self.fewshot_split} split has {available} examples.")


@dataclass(frozen=True)
class Scores:
    """What one arm scored.

    Attributes:
        right: by metric, whether each question was answered rightly.
        score: by metric, the share right.
        stderr: by metric, its standard error, as lm-eval computes it.
        answers: the texts.
    """

    right: dict[str, list[bool]]
    score: dict[str, float]
    stderr: dict[str, float]
    answers: list[str]

    def figures(self) -> dict[str, dict[str, float]]:
        """Share right and standard error, by metric."""
        return {metric: {"score": self.score[metric], "stderr": self.stderr[metric]} for metric in METRICS}


def make_task(questions: Questions | None, shots: int, seed: int) -> Any:
    """lm-eval's task with so many examples. ``questions``: None for those of the hub."""
    import yaml
    from datasets import Dataset, DatasetDict
    from lm_eval.api.task import ConfigurableTask

    # They log each failed try, with its traceback; what a failure means is said once, by `ask`.
    for logger in ("lm_eval", "asyncio"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    config = yaml.safe_load((files("lm_eval.tasks") / "gsm8k" / "gsm8k.yaml").read_text())
    del config["tag"]
    if questions is not None:
        splits = DatasetDict(
            {name: Dataset.from_list(rows) for name, rows in vars(questions).items() if rows}  # in memory, no cache
        )
        config |= {"custom_dataset": lambda **_: splits, "fewshot_split": questions.fewshot_split}
    try:
        task = ConfigurableTask(config=config)
    except (OSError, ValueError) as error:
        raise UsageError("GSM8K cannot be loaded from the hub: pass --data, a folder with its test.jsonl.") from error
    task.set_config("num_fewshot", shots)
    task.set_fewshot_seed(seed)
    return task


def prompts(task: Any, limit: int | None) -> list[str]:
    """What will be sent, a question each."""
    task.build_all_requests(limit=limit)
    return [instance.args[0] for instance in task.instances]


def ask(task: Any, server: Server, *, limit: int | None, concurrency: int, answer_tokens: int) -> Scores:
    """Put a new task to a server, greedily, by lm-eval's local-completions. Raises ServerError if it fails."""
    import aiohttp
    import requests
    from lm_eval.api.registry import get_model
    from lm_eval.evaluator import evaluate

    model = get_model("local-completions")(
        model=server.info()["served_model_name"],
        base_url=f"{server.url}/v1/completions",
        # The server tokenizes: no tokenizer is needed here.
        tokenizer_backend=None,
        num_concurrent=concurrency,
        max_gen_toks=answer_tokens,
        timeout=_TIMEOUT_S,
    )
    try:
        results = evaluate(model, {"tasks": {"gsm8k": task}}, limit=limit)
    except (TimeoutError, aiohttp.ClientError, requests.RequestException) as error:
        raise ServerError(f"{server.name} at {server.url} failed on /v1/completions: {error!r}") from error
    figures, samples = results["results"]["gsm8k"], results["samples"]["gsm8k"]
    by_metric = {
        metric: sorted((sample for sample in samples if sample["filter"] == metric), key=lambda s: s["doc_id"])
        for metric in METRICS
    }
    return Scores(
        right={metric: [sample["exact_match"] == 1 for sample in chosen] for metric, chosen in by_metric.items()},
        score={metric: figures[f"exact_match,{metric}"] for metric in METRICS},
        stderr={metric: figures[f"exact_match_stderr,{metric}"] for metric in METRICS},
        answers=[sample["resps"][0][0] for sample in by_metric[METRICS[0]]],
    )


def same_answers(baseline: Scores, candidate: Scores) -> int:
    """How many answers are the same text."""
    return sum(ours == theirs for ours, theirs in zip(baseline.answers, candidate.answers, strict=True))


def _rows(path: Path) -> list[Row]:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            question, answer = row["question"], row["answer"]
            if not isinstance(question, str) or "####" not in answer:
                raise ValueError("no ####")
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{path}, line {number}, is no GSM8K question: each line is a JSON object with question and answer, "
                "whose number follows ####."
            ) from error
        rows.append({"question": question, "answer": answer})
    if not rows:
        raise UsageError(f"{path} is empty.")
    return rows
