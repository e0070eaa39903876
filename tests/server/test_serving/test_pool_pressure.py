"""More requests than the KV pool holds: some are retracted, come back as CP or plain extends, and answer the same."""

from tests.server.test_serving import checks
from tests.server.test_serving.checks import FILLER, LONG, SHORT

RETRACTED = "KV cache pool is full. Retract requests."


def test_retracted_requests_come_back_as_cp_extends(pair, tokens, log_of):
    retractions, extends = checks.pressure_of_long_requests(pair, tokens)
    assert retractions
    assert log_of("sharded").count(RETRACTED)
    assert extends.cp_rows >= sum(LONG) + 240 * retractions  # all but the last rows of a chunk
    pair.assert_nothing_is_held()


def test_retracted_requests_come_back_as_plain_extends(pair, tokens, log_of):
    before = log_of("sharded").count(RETRACTED)
    retractions, extends = checks.pressure_of_short_requests(pair, tokens)
    assert retractions
    assert log_of("sharded").count(RETRACTED) > before
    assert extends.cp_rows == 1024
    assert extends.tp_rows >= FILLER - 1024 + sum(SHORT) + 60 * retractions
    pair.assert_nothing_is_held()


def test_replicated_weights(pair_with, tokens, log_of):
    """SGLang's own static CP, which deals out every extend."""
    with pair_with("replicated") as pair:
        for check, rows in (
            (checks.pressure_of_long_requests, sum(LONG)),
            (checks.pressure_of_short_requests, FILLER + sum(SHORT)),
        ):
            retractions, extends = check(pair, tokens)
            assert retractions
            assert extends.cp_rows >= rows + 60 * retractions
            pair.assert_nothing_is_held()
    assert log_of("replicated").count(RETRACTED) >= 2
