"""Word problems in GSM8K's format."""

import json
from pathlib import Path

PEOPLE = ("Anna", "Boris", "Chloe", "Dmitri", "Elsa", "Farid", "Greta", "Hiro", "Ines", "Jonas", "Kemal", "Lucia")


def problem(person: str, boxes: int) -> dict[str, str]:
    """One problem, different for each person and number."""
    total = boxes * 12 + 7
    return {
        "question": f"{person} fills {boxes} boxes with 12 pears each and has 7 pears left. How many pears are there?",
        "answer": f"The boxes hold {boxes} * 12 = <<{boxes}*12={boxes * 12}>>{boxes * 12} pears.\n"
        f"With the others there are {total} pears.\n#### {total}",
    }


TEST = [problem(person, number) for number, person in enumerate(PEOPLE, 3)]
TRAIN = [problem(person, number) for number, person in enumerate(PEOPLE, 40)]


def write(folder: Path, *, train: bool = True) -> Path:
    """test.jsonl, and train.jsonl unless told otherwise."""
    for name, rows in (("test", TEST), ("train", TRAIN)):
        if name == "test" or train:
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
