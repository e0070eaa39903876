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


# Two workers share the tests out, the longest work first. What asks a reference server is in one of two units, so that
# a reference is started once for each model there; of the rest a file goes to one worker, those with servers first.
_SERVERS = "tests/server/"
_OWN = tuple(f"{_SERVERS}test_{name}.py" for name in ("costs", "faults", "metrics", "refusals"))
_SERVING = tuple(f"{_SERVERS}test_{name}" for name in ("serving/", "speculative.py", "recall.py", "parity_on_tasks.py"))
_UNITS = ("parity", "serving")


def unit_of_work(nodeid):
    """What goes to one worker as a whole."""
    path = nodeid.partition("::")[0]
    if path.startswith(_SERVERS) and path not in _OWN:
        return "serving" if path.startswith(_SERVING) else "parity"
    return path


def _turn(unit):
    return _UNITS.index(unit) if unit in _UNITS else len(_UNITS) + (unit not in _OWN)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    for item in items:
        assert "reference_of" not in item.fixturenames or unit_of_work(item.nodeid) in _UNITS, item.nodeid
    items.sort(key=lambda item: _turn(unit_of_work(item.nodeid)))


def pytest_xdist_make_scheduler(config, log):
    return _Scheduling(config, log)


class _Scheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid):
        return unit_of_work(nodeid)
