"""What was computed before: prefix-cache hits and sessions."""

import httpx

from evals.checks import greedy
from evals.prompts import slices
from tests.server.test_serving.pair import Counting, assert_same


def test_prefix_hits_decide_by_the_new_tokens(pair, tokens):
    (prompt,) = slices(tokens, (600,))
    for cached, modes in ((256, "cp"), (290, "cp"), (448, "tp")):
        pair.candidate.flush_cache()
        pair.candidate.generate(input_ids=prompt[:cached], sampling_params=greedy(1))
        extends = Counting(pair.candidate)
        answer = pair.candidate.generate(input_ids=prompt, sampling_params=greedy(3), return_logprob=True)
        assert_same(answer, pair.expected(input_ids=prompt, sampling_params=greedy(3), return_logprob=True))
        assert answer["meta_info"]["cached_tokens"] == cached // 64 * 64
        rows = 600 - cached // 64 * 64
        assert (extends().cp_rows, extends().tp_rows) == ((rows, 0) if modes == "cp" else (0, rows))


def test_sessions(pair, tokens):
    first, second = slices(tokens, (300, 330))
    for streaming in (False, True):
        pair.candidate.flush_cache()
        body = {"capacity_of_str_len": 10_000, "streaming": streaming}
        session = httpx.post(f"{pair.candidate.url}/open_session", json=body, timeout=60).json()
        extends = Counting(pair.candidate)
        turn = {"id": session}
        opening = pair.candidate.generate(input_ids=first, sampling_params=greedy(3), session_params=turn)
        if not streaming:
            turn["rid"] = opening["meta_info"]["id"]
        answer = pair.candidate.generate(input_ids=second, sampling_params=greedy(3), session_params=turn)
        pair.call("/close_session", session_id=session)
        assert opening["output_ids"] == pair.expected(input_ids=first, sampling_params=greedy(3))["output_ids"]
        whole = [*first, *opening["output_ids"], *second]
        assert answer["output_ids"] == pair.expected(input_ids=whole, sampling_params=greedy(3))["output_ids"]
        assert extends().cp_rows >= 600
        pair.assert_nothing_is_held()
