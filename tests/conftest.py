"""For all tests."""

from hypothesis import settings

# How long an example takes says nothing: the machine may have other work.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")
