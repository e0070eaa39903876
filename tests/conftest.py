"""For all tests."""

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

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


# Two workers share the tests out, the longest work first. Whatever asks the reference server goes to one of them, so that
# it is started once for each model; of the rest a file goes to one worker, those with servers of their own first.
OWN_SERVERS = {f"tests/server/test_{name}.py" for name in ("costs", "faults", "metrics", "refusals")}
REFERENCE = "reference"


def unit_of_work(nodeid):
    """What goes to one worker as a whole."""
    path = nodeid.partition("::")[0]
    return REFERENCE if path.startswith("tests/server/") and path not in OWN_SERVERS else path


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    units = [(unit_of_work(item.nodeid), "reference_of" in item.fixturenames) for item in items]
    assert all(unit == REFERENCE for unit, asks in units if asks), "a file asks the reference and is in OWN_SERVERS"
    items.sort(key=lambda item: (unit_of_work(item.nodeid) != REFERENCE, "tests/server/" not in item.nodeid))


def pytest_xdist_make_scheduler(config, log):
    return _Scheduling(config, log)


class _Scheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid):
        return unit_of_work(nodeid)
