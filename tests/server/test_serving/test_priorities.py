"""Priority scheduling: who is prefilled first, and who makes room."""

import time
from concurrent.futures import ThreadPoolExecutor

from evals.checks import greedy
from evals.prompts import slices
from tests.server.test_serving.pair import SLOTS, Counting, assert_same, wait_until


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


def test_the_urgent_request_gets_the_room_of_running_ones(pair, tokens):
    """All slots are taken: a running request of less priority gives its slot and its pages back, and comes again."""
    casual, (urgent,) = slices(tokens, (*[70] * (SLOTS - 1), 300)), slices(tokens[2000:], (900,))
    pair.candidate.flush_cache()
    extends = Counting(pair.candidate)
    many, few = greedy(16), greedy(3)
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(pair.candidate.generate, input_ids=casual, sampling_params=many, priority=0)
        wait_until(lambda: extends().cp_rows + extends().tp_rows >= sum(map(len, casual)))
        answer = pool.submit(pair.candidate.generate, input_ids=urgent, sampling_params=few, priority=100).result()
        others = asked.result()
    assert_same(others, pair.expected(input_ids=casual, sampling_params=many))
    assert_same(answer, pair.expected(input_ids=urgent, sampling_params=few))
    assert answer["meta_info"]["num_retractions"] == 0
    assert sum(other["meta_info"]["num_retractions"] for other in others)
    pair.assert_nothing_is_held()
