"""A disk of 1 MB that is really full, by the engine's own output."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import ROOT
from tests.support.small_disk import mounting, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return small_disk(tmp_path / "disk")


@pytest.mark.heavy  # fills a real disk, and waits until nothing frees any room
def test_a_full_disk_refuses_new_starts_and_what_runs_serves_on(disk: Path) -> None:
    """Failures 14: the engine lives and its stream goes on, a start is refused in one sentence, and works again when
    there is room."""
    program = shlex.join([sys.executable, "-m", "tests.agent.full_disk", str(disk)])
    done = subprocess.run(mounting(disk, program), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["left"] < 4096
    assert found["under_way"]
    code, detail, _ = found["refused"]
    assert code == "disk_full"
    assert detail.startswith(f"cannot start m/1: 0 MiB are free in {disk}")
    assert found["unwritable"] == [
        "state_unwritable",
        f"cannot start m/1: {disk}/ledger.json can't be written (No space left on device)",
        "free space on its disk",
    ]
    assert found["stream"]
    assert found["answered"]
    assert found["remembered"] == ["uid/0"]
    assert found["again"] == "ready"
    assert found["both"] == ["other/0", "uid/0"]
    assert found["first"] == ["ready", True]
