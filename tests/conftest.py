"""For all tests."""

import pytest
from hypothesis import settings

# How long an example takes says nothing: the machine may have other work.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


def pytest_addoption(parser):
    parser.addoption(
        "--soak-minutes",
        type=float,
        default=2.25,
        help="Traffic after the replays of tests/server/test_parity_fuzz.py.",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Share the tests out to two workers, the longest work first: all that asks the reference server goes to one of
    them, so that it is started once for each model; of the rest a file goes to one worker, those with servers first."""

    def turn(item):
        return "reference_of" not in item.fixturenames, "tests/server/" not in item.nodeid

    items.sort(key=turn)
    for item in items:
        group = "reference" if "reference_of" in item.fixturenames else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
