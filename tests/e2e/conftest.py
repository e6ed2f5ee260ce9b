"""The house that end-to-end tests run in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    try:
        house.up()
        yield house
    finally:
        house.close()
