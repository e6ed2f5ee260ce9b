"""The fake NVML in three ages, each built once, and a machine that has the newest."""

from pathlib import Path

import pytest

from tests.agent.hardware.machine import Machine
from tests.support import fake_nvml


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def library_of_460(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.build(tmp_path_factory.mktemp("nvml-460"), "-DV2")


@pytest.fixture(scope="session")
def library_of_440(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.build(tmp_path_factory.mktemp("nvml-440"), "-DOLD")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path) -> Machine:
    return Machine(tmp_path, monkeypatch, library)
