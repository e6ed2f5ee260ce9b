"""A machine whose driver's library is the fake one: whatever asks NVML gets the facts that were written last."""

from pathlib import Path
from typing import Any

import pytest

from agent_client.hardware import nvml
from agent_client.hardware.cards import Found
from tests.support import fake_nvml

needs_gcc = pytest.mark.skipif(not fake_nvml.available(), reason="gcc is needed to build the fake library")


class Machine:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
        self.file = folder / "facts"
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
        monkeypatch.setenv("FAKE_NVML", str(self.file))

    def write(self, facts: dict[str, object], **changes: object) -> None:
        fake_nvml.write(self.file, {**facts, **changes})

    def read(self, facts: dict[str, object], **changes: object) -> Found:
        self.write(facts, **changes)
        return nvml.read()


def codes(gpu: dict[str, Any]) -> list[str]:
    return [problem["code"] for problem in gpu["problems"]]
