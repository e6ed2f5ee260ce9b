"""The house that end-to-end tests run in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import House


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database with all tables: each house starts from a copy."""
    house = House(tmp_path_factory.mktemp("migrated"))
    house.manage("migrate", "-v0")
    return house.folder / "llmgw.sqlite3"


@pytest.fixture
def house(tmp_path: Path, migrated: Path) -> Iterator[House]:
    house = House(tmp_path)
    try:
        house.up(migrated)
        yield house
    finally:
        house.close()
