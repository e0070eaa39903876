"""Priority scheduling: who is prefilled first."""

import time
from concurrent.futures import ThreadPoolExecutor

from evals.checks import greedy
from evals.prompts import slices
from tests.server.test_serving.pair import Counting, assert_same, wait_until


def test_the_urgent_request_overtakes(pair, tokens):
    filler, casual, urgent = slices(tokens, (700, 300, 310))
    pair.candidate.flush_cache()
    extends = Counting(pair.candidate)

    def ask(prompt, priority):
        answer = pair.candidate.generate(input_ids=prompt, sampling_params=greedy(1), priority=priority)
        return answer, time.monotonic()

    with pair.slowed(0.4), ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask, filler, 0)]
        wait_until(lambda: extends().cp >= 1)
        asked.append(pool.submit(ask, casual, 0))
        time.sleep(0.1)
        asked.append(pool.submit(ask, urgent, 5))
        answers, ends = zip(*(future.result() for future in asked), strict=True)
    assert_same(
        list(answers), [pair.expected(input_ids=p, sampling_params=greedy(1)) for p in (filler, casual, urgent)]
    )
    assert ends[2] < ends[1]
