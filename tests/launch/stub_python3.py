"""Stands in for ``python3`` on the PATH: records what would run for long, and lets the rest run for real.

SGLang's server and its benchmark are recorded in the file ``RECORD``, a JSON line each. The benchmark also appends the
result that ``bench_serving`` would, ``COMPLETED`` of its requests answered (default: all).
"""

from __future__ import annotations

import argparse
import json
import os
import sys

RECORDED = ("sglang.launch_server", "sglang.bench_serving")


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[0] != "-m" or arguments[1] not in RECORDED:
        interpreter = os.environ["INTERPRETER"]
        os.execv(interpreter, [interpreter, *arguments])
    with open(os.environ["RECORD"], "a") as record:
        record.write(
            json.dumps({"pid": os.getpid(), "command": ["python3", *arguments], "env": dict(os.environ)}) + "\n"
        )
    if arguments[1] == "sglang.bench_serving":
        bench(arguments[2:])


def bench(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tag")
    parser.add_argument("--output-file")
    parser.add_argument("--num-prompts", type=int)
    point, _ = parser.parse_known_args(arguments)
    result = {
        "tag": point.tag,
        "backend": "sglang-oai",
        "server_info": {"internal_states": [{}]},
        "duration": 1.0,
        "completed": int(os.environ.get("COMPLETED", point.num_prompts)),
        "total_input_tokens": 1,
    }
    if os.environ.get("DIES_AT") == point.tag:
        sys.exit(3)
    with open(point.output_file, "a") as file:
        file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
