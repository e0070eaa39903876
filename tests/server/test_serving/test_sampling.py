"""What shapes an answer besides the model: grammars, penalties, least lengths and stops, all in one batch."""

import json
import re

from evals.prompts import slices

GREEDY = {"temperature": 0, "max_new_tokens": 20}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
PARAMETERS = {
    "regex": {"regex": "(yes|no), [0-9]{5}"},
    "json": {"json_schema": json.dumps(SCHEMA)},
    "penalties": {"frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.2, "ignore_eos": True},
    "least length": {"min_new_tokens": 10, "stop_token_ids": [32, *range(97, 123)]},
    "stop token": {"stop_token_ids": [32, *range(65, 91)]},
    "stop string": {"stop": list("abcdefghijklmnopqrstuvwxyz")},
    "stop regex": {"stop_regex": "[A-Z][A-Z]"},
    "logit bias": {"logit_bias": {"66": 100.0}, "ignore_eos": True},
}
LENGTHS = (300, 5, 250, 64, 129, 7, 130, 66)


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
