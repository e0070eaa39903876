"""Answers token by token, given up, paused and resumed, while CP extends run."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import openai
import pytest

from evals.checks import greedy
from evals.prompts import slices
from tests.server.test_serving.pair import Counting, assert_same, wait_until


def streamed(server, **body):
    """Events of /generate as they come."""
    with httpx.stream("POST", f"{server.url}/generate", json={**body, "stream": True}, timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("data:") and "[DONE]" not in line:
                yield json.loads(line.removeprefix("data:"))


def test_the_openai_client(pair, tokens):
    text = bytes(tokens[:300]).decode("latin-1")
    extends = Counting(pair.candidate)
    pair.candidate.flush_cache()
    said = []
    for server in (pair.candidate, pair.reference):
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        ask = {"model": "default", "temperature": 0, "max_tokens": 6, "stream": True}
        completion = [event.choices[0].text for event in client.completions.create(prompt=text, **ask)]
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
        chat = [event.choices[0].delta.content for event in client.chat.completions.create(messages=messages, **ask)]
        assert len(completion) >= 6
        assert len(chat) >= 6
        said.append(("".join(completion), "".join(filter(None, chat))))
    assert said[0] == said[1]
    assert all(said[0])
    assert extends().cp_rows >= 600


def test_abort_between_two_chunks(pair, tokens):
    (prompt,) = slices(tokens, (1300,))
    extends = Counting(pair.candidate)
    with pair.slowed(0.5), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(
            httpx.post, f"{pair.candidate.url}/generate", json={"input_ids": prompt, "rid": "chunks"}, timeout=60
        )
        wait_until(lambda: extends().cp >= 1)
        pair.call("/abort_request", rid="chunks")
        answer = asked.result()
    assert answer.json()["meta_info"]["finish_reason"]["type"] == "abort"
    assert 512 <= extends().cp_rows < 1300
    pair.assert_nothing_is_held()


def test_abort_while_decoding(pair, tokens):
    (prompt,) = slices(tokens, (300,))
    ask = {"input_ids": prompt, "sampling_params": greedy(400)}
    expected = pair.expected(input_ids=prompt, sampling_params=greedy(3))["output_ids"]
    pair.candidate.flush_cache()
    events = []
    for event in streamed(pair.candidate, **ask, rid="decoding"):
        events.append(event)
        if len(events) == 3:
            pair.call("/abort_request", rid="decoding")
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert events[-1]["output_ids"][:3] == expected
    assert len(events[-1]["output_ids"]) < 100
    pair.assert_nothing_is_held()

    with closing(streamed(pair.candidate, **ask)) as stream:  # a client that goes away
        assert next(stream)["output_ids"] == expected[:1]
    pair.assert_nothing_is_held()


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_pause_and_continue(pair, tokens, mode):
    """While one request decodes and another is between two chunks of its prefill."""
    decoding, chunked = slices(tokens, (210, 1100))
    expected = [
        pair.expected(input_ids=prompt, sampling_params=greedy(count))
        for prompt, count in ((decoding, 10), (chunked, 3))
    ]
    pair.candidate.flush_cache()
    extends = Counting(pair.candidate)
    events = []

    def follow():
        events.extend(streamed(pair.candidate, input_ids=decoding, sampling_params=greedy(10)))

    with pair.slowed(0.2), ThreadPoolExecutor(2) as pool:
        first = pool.submit(follow)
        wait_until(lambda: extends().cp == 1)
        second = pool.submit(pair.candidate.generate, input_ids=chunked, sampling_params=greedy(3))
        wait_until(lambda: extends().cp == 2)
        pair.call("/pause_generation", mode=mode)
        try:
            time.sleep(0.5)  # what was under way ends
            paused = extends()
            time.sleep(0.5)
            assert extends() == paused
            assert paused.cp_rows < 210 + 1100
            assert not second.done()
        finally:
            pair.call("/continue_generation")
        first.result()
        assert_same([events[-1], second.result()], expected)
    assert events[-1]["meta_info"]["num_retractions"] == (mode == "retract")
    if mode == "in_place":
        assert extends().cp_rows + extends().tp_rows == 210 + 1100
    pair.assert_nothing_is_held()


def test_pause_that_aborts(pair, tokens):
    (prompt,) = slices(tokens, (1100,))
    pair.candidate.flush_cache()
    extends = Counting(pair.candidate)
    with pair.slowed(0.3), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{pair.candidate.url}/generate", json={"input_ids": prompt}, timeout=60)
        wait_until(lambda: extends().cp >= 1)
        pair.call("/pause_generation", mode="abort")
        answer = asked.result()
        pair.call("/continue_generation")
    assert answer.json()["meta_info"]["finish_reason"]["type"] == "abort"
    assert extends().cp_rows < 1100
    pair.assert_nothing_is_held()


def test_health_while_extends_run(pair, tokens):
    (prompt,) = slices(tokens, (1300,))
    pair.candidate.flush_cache()
    extends = Counting(pair.candidate)
    with pair.slowed(0.3), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(pair.candidate.generate, input_ids=prompt, sampling_params=greedy(3))
        wait_until(lambda: extends().cp >= 1)
        for path in ("/health", "/health_generate"):
            assert httpx.get(pair.candidate.url + path, timeout=60).status_code == httpx.codes.OK
    assert_same(asked.result(), pair.expected(input_ids=prompt, sampling_params=greedy(3)))
    assert extends().cp_rows >= 1024
