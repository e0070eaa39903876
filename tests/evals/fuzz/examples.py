"""Streams, answers and servers that need no process."""

from __future__ import annotations

from evals.fuzz.bench import Verdict
from evals.fuzz.reference import Prepared
from evals.fuzz.said import Compared, Said
from evals.fuzz.streams import Piece, Request, Stream, Wave


def request(tokens=40, new_tokens=3, **options) -> Request:
    return Request(prompt=(Piece(tokens=tokens, seed=1),), new_tokens=new_tokens, **options)


def stream(*requests: Request) -> Stream:
    return Stream(waves=(Wave(requests=requests),))


def said(*tokens: int, **changes) -> Said:
    """An answer whose logprobs are those of its positions."""
    values = {
        "tokens": tokens,
        "text": "".join(map(chr, tokens)),
        "finish": "length",
        "prompt_tokens": 4,
        "output_logprobs": tuple(-0.5 * i for i in range(len(tokens))),
        "input_logprobs": (None, -1.0, -2.0, -3.0),
        "top_input": ((), *(((-0.1, 7), (-0.2, 8), (-0.3, 9)),) * 3),
        "top_output": (((-0.1, 7), (-0.2, 8), (-0.3, 9)),) * len(tokens),
    }
    return Said(**{**values, **changes})


class FakeReference:
    """Says nothing to everything."""

    streams = 0

    def prepare(self, stream: Stream, *, together: bool = True) -> Prepared:
        return Prepared(stream, {}, {})

    def forget(self) -> None:
        pass


class FakeBench:
    """Finds something wrong with the streams that ``fails`` names; counts its plays."""

    def __init__(self, fails) -> None:
        self.fails = fails
        self.plays: list[Stream] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def check(self, prepared: Prepared) -> Verdict:
        self.plays.append(prepared.stream)
        found = ["request 0: planted"] if self.fails(prepared.stream) else []
        counters = {"cp_extends": 1, "cp_rows": 40, "cp_rows_over_topk": 8, "cp_local_rows": 20}
        return Verdict(found, Compared(5, 3, 1e-7), counters, 0.1)
