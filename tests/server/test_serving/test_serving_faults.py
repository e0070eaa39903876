"""The checks of this folder see what they are there to see."""

import pytest

from tests.server.test_serving import checks, faults

PLANTED = [
    (faults.WRONG_ROW, checks.logprobs),
    (faults.LOGPROBS, checks.logprobs),
    (faults.HIDDEN_STATES, checks.hidden_states),
    (faults.OLD_PLACES, checks.pressure_of_long_requests),
]


@pytest.mark.parametrize(("fault", "check"), PLANTED)
def test_a_check_sees_the_fault(fault, check, pair, fault_file, tokens):
    fault_file.write_text(fault)
    try:
        with pytest.raises(AssertionError, match="!="):
            check(pair, tokens)
    finally:
        fault_file.write_text("")
