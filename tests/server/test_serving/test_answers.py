"""Logprobs, hidden states, several answers and scores of a CP server equal plain SGLang's."""

import httpx

from evals.checks import MAX_LOGPROB_NATS, greedy
from evals.prompts import slices
from tests.server.test_serving import checks
from tests.server.test_serving.pair import Counting


def test_logprobs(pair, tokens):
    extends = checks.logprobs(pair, tokens)
    assert extends.cp_rows + extends.tp_rows == sum(checks.LENGTHS)
    assert extends.cp
    assert extends.tp


def test_hidden_states(pair, tokens):
    extends = checks.hidden_states(pair, tokens)
    assert (extends.cp, extends.cp_rows) == (1, 369)


def test_several_answers(pair, tokens):
    prompt = slices(tokens, (300,))
    extends = pair.check(input_ids=prompt, sampling_params={**greedy(3), "n": 3}, return_logprob=True)
    assert extends.cp_rows >= 300


def test_score(pair, tokens):
    pair.candidate.flush_cache()
    extends = Counting(pair.candidate)
    query, *items = slices(tokens, (200, 100, 9))
    body = {"query": query, "items": items, "label_token_ids": [65, 66, 110], "apply_softmax": True}
    ours, theirs = (
        httpx.post(f"{server.url}/v1/score", json=body, timeout=60).json()["scores"]
        for server in (pair.candidate, pair.reference)
    )
    assert len(ours) == 2
    assert all(
        abs(a - b) < MAX_LOGPROB_NATS
        for mine, yours in zip(ours, theirs, strict=True)
        for a, b in zip(mine, yours, strict=True)
    )
    assert extends().cp_rows >= 300


def test_embeddings_are_refused_as_with_cp_off(pair):
    body = {"model": "default", "input": "Prefill context parallelism " * 20}
    ours, theirs = (
        httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=60) for server in (pair.candidate, pair.reference)
    )
    assert ours.status_code == theirs.status_code == httpx.codes.BAD_REQUEST
    assert ours.json()["message"] == theirs.json()["message"]
