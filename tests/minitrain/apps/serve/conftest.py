from __future__ import annotations

import pytest

from .serving import serving, small


@pytest.fixture(scope="package")
def given():
    return small()


@pytest.fixture(scope="module")
def running(given):
    with serving(given) as one:
        yield one
