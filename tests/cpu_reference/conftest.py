import os
from unittest import mock

import pytest


@pytest.fixture(autouse=True)
def _environment_as_it_was():
    """The platform publishes its mode in the environment, for its ranks; other tests' servers must not inherit it."""
    with mock.patch.dict(os.environ):
        yield
