"""The house that end-to-end tests run in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import House
from tests.support.ports import free_port
from tests.support.postgres import PrivatePostgres


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


@pytest.fixture
def database() -> Iterator[PrivatePostgres]:
    """A PostgreSQL of the test's own, which it may stop."""
    server = PrivatePostgres(free_port())
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def house_on_postgres(tmp_path: Path, database: PrivatePostgres) -> Iterator[House]:
    house = House(tmp_path, DATABASE_URL=database.url)
    try:
        house.up()
        yield house
    finally:
        house.close()
