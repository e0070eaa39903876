"""For all tests."""

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
