"""How much is tried where somebody waits for the tests, and how much in CI."""

import os
from collections.abc import Iterable
from typing import Any

import pytest


def examples(number: int) -> int:
    """Of a property: so many in CI, else a fifth of them."""
    return number if os.environ.get("CI") else max(number // 5, 5)


def first_of(values: Iterable[Any]) -> list[Any]:
    """Parameters of a test: the first for everybody, the others, which show the same of other values, for CI."""
    first, *others = values
    return [first, *(pytest.param(other, marks=pytest.mark.heavy) for other in others)]
