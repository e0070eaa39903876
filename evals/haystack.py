"""Needles in a haystack: what is hidden where, and the prompt of it. Pure, and the same for the same seed."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_cp.errors import UsageError

INTRO = "Secret numbers are hidden in the following text. Memorise them; you will be asked for one.\n\n"
NAMES = (
    *("Accra", "Bergen", "Cusco", "Dakar", "Esbjerg", "Fukuoka", "Ghent", "Havana", "Izmir", "Jakarta", "Kraków"),
    *("Lisbon", "Mombasa", "Nagoya", "Oulu", "Perth", "Quito", "Riga", "Seville", "Tbilisi", "Utrecht", "Vilnius"),
)
"""Of the needles; one prompt never holds a name twice."""


@dataclass(frozen=True)
class Trial:
    """One prompt: a needle at each depth, of which the one at ``depth`` is asked for.

    Attributes:
        length: of the prompt, in tokens.
        depth: of the needle asked for, in percent of the haystack.
        sample: which of the prompts of this length and depth.
        needles: a sentence a depth, the shallowest first.
        question: the end of the prompt, which the number continues.
        number: the right answer.
        start: where in the text the haystack begins, as a share of the text: prompts share no prefix that the
            radix cache could hold.
    """

    length: int
    depth: int
    sample: int
    needles: tuple[str, ...]
    question: str
    number: str
    start: float

    def is_right(self, answer: str) -> bool:
        """Exactly the number, and then no further digit."""
        match = re.match(r"\s*(\d+)", answer)
        return match is not None and match[1] == self.number


def plan(length: int, depths: Sequence[int], samples: int, seed: int) -> list[Trial]:
    """The trials of one length. ``depths``: in percent, ascending, at most as many as there are names."""
    trials = []
    for depth in depths:
        for sample in range(samples):
            rng = random.Random(f"{seed} {length} {depth} {sample}")
            names = rng.sample(NAMES, len(depths))
            numbers = [str(number) for number in rng.sample(range(1_000_000, 10_000_000), len(depths))]
            asked = depths.index(depth)
            trials.append(
                Trial(
                    length=length,
                    depth=depth,
                    sample=sample,
                    needles=tuple(_sentence(n, number) for n, number in zip(names, numbers, strict=True)),
                    question=f"\n\nQuestion: What is the secret number of {names[asked]}?\n"
                    f"Answer: The secret number of {names[asked]} is",
                    number=numbers[asked],
                    start=rng.random(),
                )
            )
    return trials


def assemble(
    trial: Trial,
    depths: Sequence[int],
    text: Sequence[int],
    intro: Sequence[int],
    needles: Sequence[Sequence[int]],
    question: Sequence[int],
) -> list[int]:
    """The prompt's token ids, exactly ``trial.length`` of them; ``text`` is repeated as often as needed.

    Raises:
        UsageError: if there is less room for text than the needles take.
    """
    taken = sum(len(needle) for needle in needles)
    room = trial.length - len(intro) - len(question) - taken
    if room < taken:
        shortest = len(intro) + len(question) + 2 * taken
        raise UsageError(
            f"--lengths {trial.length} is too short for {len(needles)} needles, which need {shortest:,} tokens: "
            "give longer --lengths or fewer --depths."
        )
    start = int(trial.start * len(text))
    hay = [text[(start + index) % len(text)] for index in range(room)]
    prompt, done = list(intro), 0
    for depth, needle in zip(depths, needles, strict=True):
        here = round(room * depth / 100)
        prompt += hay[done:here]
        prompt += needle
        done = here
    return [*prompt, *hay[done:], *question]


def _sentence(name: str, number: str) -> str:
    return f" The secret number of {name} is {number}. "
