"""What shapes an answer besides the model: grammars, least lengths, stops and biases in one batch; penalties alone."""

import json
import re

from evals.prompts import slices

GREEDY = {"temperature": 0, "max_new_tokens": 20}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
PARAMETERS = {
    "regex": {"regex": "(yes|no), [0-9]{5}"},
    "json": {"json_schema": json.dumps(SCHEMA)},
    "least length": {"min_new_tokens": 10, "stop_token_ids": [32, *range(97, 123)]},
    "stop token": {"stop_token_ids": [32, *range(65, 91)]},
    "stop string": {"stop": list("abcdefghijklmnopqrstuvwxyz")},
    "stop regex": {"stop_regex": "[A-Z][A-Z]"},
    "logit bias": {"logit_bias": {"66": 100.0}, "ignore_eos": True},
}
LENGTHS = (300, 5, 250, 64, 129, 7, 130)
PENALTIES = {"frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.2}


def test_one_batch_of_all(pair, tokens):
    parameters = [{**GREEDY, **more} for more in PARAMETERS.values()]
    prompts = slices(tokens, LENGTHS)
    extends = pair.check(input_ids=prompts, sampling_params=parameters)
    assert extends.cp_rows >= 512

    answers = dict(zip(PARAMETERS, pair.expected(input_ids=prompts, sampling_params=parameters), strict=True))
    assert re.fullmatch("(yes|no), [0-9]{5}", answers["regex"]["text"])
    assert len(answers["least length"]["output_ids"]) >= 10
    assert answers["stop token"]["meta_info"]["finish_reason"]["type"] == "stop"
    assert answers["stop string"]["meta_info"]["finish_reason"]["matched"] in PARAMETERS["stop string"]["stop"]
    assert set(answers["logit bias"]["text"]) == {"B"}


def test_penalties(pair, tokens):
    """Alone: SGLang's overlap scheduler applies them a step late unless a request joins, with CP off too."""
    (prompt,) = slices(tokens, (300,))
    penalized, plain = {**GREEDY, **PENALTIES, "ignore_eos": True}, {**GREEDY, "ignore_eos": True}
    assert pair.check(input_ids=prompt, sampling_params=penalized).cp_rows == 300
    answers = [pair.expected(input_ids=prompt, sampling_params=parameters) for parameters in (penalized, plain)]
    assert answers[0]["output_ids"] != answers[1]["output_ids"]
