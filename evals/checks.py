"""The parity checks: the same prompts, put to a candidate in different ways, against one reference's answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from evals.answers import Answer, Difference, compare
from evals.prompts import BATCH, LENGTHS, PREFIXES, slices
from evals.server import Server, ServerError

MAX_LOGPROB_NATS = 1e-6
"""On the CPU reference platform answers agree to the bit (evals/results/fuzz.md): sums are float64, rounded once. One
that lies between two float32 values may be rounded either way, by the order of its terms: a logprob moves by 1e-7."""
NEW_TOKENS = 4
_CONCURRENCY = 8

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many are done, and how many there are."""


@dataclass(frozen=True)
class CheckResult:
    """One way of asking: how many answers differ, and by how much.

    Attributes:
        name: single, batch, prefix, concurrent.
        answers: how many were compared.
        differing: names the prompts (by length in tokens) whose greedy tokens differ.
        max_logprob: largest logprob difference in nats.
    """

    name: str
    answers: int
    differing: tuple[int, ...]
    max_logprob: float


def ask(server: Server, prompt: Sequence[int], *, input_logprobs: bool = False) -> Answer:
    """One prompt, greedily, with logprobs."""
    response = server.generate(
        input_ids=list(prompt),
        sampling_params=greedy(),
        return_logprob=True,
        logprob_start_len=0 if input_logprobs else -1,
    )
    return Answer.from_response(response)


class Reference:
    """Answers of the reference server, one prompt at a time, each asked once."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._answers: dict[tuple[int, ...], Answer] = {}

    def answer(self, prompt: Sequence[int]) -> Answer:
        key = tuple(prompt)
        if key not in self._answers:
            self._answers[key] = ask(self.server, prompt, input_logprobs=True)
        return self._answers[key]

    def completion(self, **body: object) -> str:
        """Its text for /v1/completions."""
        return self.server.completion(**body)


def run_checks(
    reference: Reference, candidate: Server, tokens: Sequence[int], *, lengths: Sequence[int] = LENGTHS, on: Progress
) -> list[CheckResult]:
    """All checks. ``tokens``: the text the prompts are cut from."""
    singles = slices(tokens, lengths)
    return [
        single(reference, candidate, singles, on),
        batch(reference, candidate, slices(tokens, BATCH)),
        _prefix(reference, candidate, slices(tokens, [300] * len(PREFIXES))),
        _concurrent(reference, candidate, [prompt for prompt in singles if 7 <= len(prompt) <= 1100]),
    ]


def single(reference: Reference, candidate: Server, prompts: Sequence[Sequence[int]], on: Progress) -> CheckResult:
    """One at a time, nothing cached, with input logprobs."""
    answers = []
    candidate.flush_cache()
    for done, prompt in enumerate(prompts):
        on(f"{candidate.name}: prompt of {len(prompt)} tokens", done, len(prompts))
        answers.append(ask(candidate, prompt, input_logprobs=True))
    return _result("single", reference, prompts, answers)


def batch(reference: Reference, candidate: Server, prompts: Sequence[Sequence[int]]) -> CheckResult:
    """All in one call, so that the scheduler prefills several together."""
    candidate.flush_cache()
    responses = candidate.generate(
        input_ids=[list(prompt) for prompt in prompts], sampling_params=greedy(), return_logprob=True
    )
    return _result("batch", reference, prompts, [Answer.from_response(response) for response in responses])


def _prefix(reference: Reference, candidate: Server, prompts: Sequence[Sequence[int]]) -> CheckResult:
    """Each after a prefix of it, which the radix cache then holds."""
    answers = []
    for prompt, prefix in zip(prompts, PREFIXES, strict=True):
        candidate.flush_cache()
        ask(candidate, prompt[:prefix])
        answer = ask(candidate, prompt)
        if answer.cached_tokens == 0:
            raise ServerError(f"{candidate.name} served a prompt of {len(prompt)} tokens without its cached prefix")
        answers.append(answer)
    return _result("prefix", reference, prompts, answers)


def _concurrent(reference: Reference, candidate: Server, prompts: Sequence[Sequence[int]]) -> CheckResult:
    """Many at once: prefill and decode of different requests interleave."""
    candidate.flush_cache()
    with ThreadPoolExecutor(_CONCURRENCY) as pool:
        answers = list(pool.map(lambda prompt: ask(candidate, prompt), prompts))
    return _result("concurrent", reference, prompts, answers)


def _result(
    name: str, reference: Reference, prompts: Sequence[Sequence[int]], answers: Sequence[Answer]
) -> CheckResult:
    differences: list[Difference] = [
        compare(reference.answer(prompt), answer) for prompt, answer in zip(prompts, answers, strict=True)
    ]
    differing = tuple(
        len(prompt)
        for prompt, difference in zip(prompts, differences, strict=True)
        if difference.first_token is not None
    )
    return CheckResult(name, len(answers), differing, max(d.max_logprob for d in differences))


def greedy(new_tokens: int = NEW_TOKENS) -> dict[str, object]:
    """Sampling parameters of every comparison: ``new_tokens`` outputs, whatever they are."""
    return {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
