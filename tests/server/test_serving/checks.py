"""Checks that tests make of a healthy server, and that must fail on one with a planted fault."""

from concurrent.futures import ThreadPoolExecutor

from evals.checks import greedy
from evals.prompts import slices
from tests.server.test_serving.pair import CHUNK, MIN_TOKENS, Counting, Extends, Pair, assert_same, wait_until

LENGTHS = (300, 5, 130, 64, 40, 7)
"""One batch: some requests alone would be plain TP, one ends a chunk."""
LONG = (253, 252, 251, 250, 249, 248)
"""Five of them and a few tokens more fill the pool; each needs another page after a few tokens."""
FILLER, SHORT = 1148, (61, 60, 59)
ASK = {"temperature": 0, "max_new_tokens": 12}
"""Without ``ignore_eos``, for which SGLang would keep room; the tiny checkpoint never says that it has ended."""


def logprobs(pair: Pair, tokens: list[int]) -> Extends:
    """Of input and output tokens, of the best ones and of chosen ones, from different places on."""
    return pair.check(
        input_ids=slices(tokens, LENGTHS),
        sampling_params=greedy(3),
        return_logprob=True,
        logprob_start_len=[100, 2, 0, -1, 30, 6],
        top_logprobs_num=[0, 2, 3, 1, 0, 5],
        token_ids_logprob=[[65], [66, 110], [67, 68], [69], [1, 2], [70]],
    )


def hidden_states(pair: Pair, tokens: list[int]) -> Extends:
    """Of all prompt tokens in their order, and of each output token; in one chunk, which is all that SGLang returns."""
    return pair.check(input_ids=slices(tokens, (64, 300, 5)), sampling_params=greedy(3), return_hidden_states=True)


def pressure_of_long_requests(pair: Pair, tokens: list[int]) -> tuple[int, Extends]:
    """More than fit, each long enough to be dealt out: first, and when it comes back. Returns retractions, extends."""
    return _under_pressure(pair, slices(tokens, LONG), [])


def pressure_of_short_requests(pair: Pair, tokens: list[int]) -> tuple[int, Extends]:
    """Short ones come, and come back, as plain TP, beside a long request that has nearly all of the pool."""
    assert sum(SHORT) < MIN_TOKENS
    return _under_pressure(pair, slices(tokens, (FILLER,)), slices(tokens[3000:], SHORT))


def _under_pressure(pair: Pair, first: list[list[int]], then: list[list[int]]) -> tuple[int, Extends]:
    """Ask for ``first``, and for ``then`` once all of that was prefilled."""
    expected = pair.expected(input_ids=[*first, *then], sampling_params=ASK)
    pair.candidate.flush_cache()
    extends = Counting(pair.candidate)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(pair.candidate.generate, input_ids=first, sampling_params=ASK)]
        if then:
            chunks = -(-sum(map(len, first)) // CHUNK)
            wait_until(lambda: extends().cp + extends().tp >= chunks)
            asked += [pool.submit(pair.candidate.generate, input_ids=then, sampling_params=ASK)]
        answers = [answer for future in asked for answer in future.result()]
    assert_same(answers, expected)
    return sum(answer["meta_info"]["num_retractions"] for answer in answers), extends()
