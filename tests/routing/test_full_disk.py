"""A state folder whose disk is full when the router starts: it serves where it can, and says once what is wrong."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from routing import grid_file
from routing.grid import Grid
from tests.e2e.harness import ROOT
from tests.routing.full_disk import REQUESTS_PER_MINUTE
from tests.support.small_disk import mounting, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return small_disk(tmp_path / "disk")


def seen(disk: Path, room: int) -> dict[str, Any]:
    program = shlex.join([sys.executable, "-m", "tests.routing.full_disk", str(disk), str(room)])
    done = subprocess.run(mounting(disk, program), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_without_room_for_the_counts_the_processes_share_them_in_memory(disk: Path) -> None:
    found = seen(disk, 100_000)
    assert (found["ended"], found["code"]) == (None, 0)
    # One limit over both processes; a minute that turns meanwhile may let one more in.
    assert found["statuses"]["429"] in (30 - REQUESTS_PER_MINUTE, 29 - REQUESTS_PER_MINUTE)
    told = [line for line in found["log"] if "counts" in line]
    assert told == [
        f"cannot keep the counts of limits in {disk}/router/grid: No space left on device (34 MB are wanted); this run "
        "counts in memory, and what it counts ends with it; make room and start it again"
    ]
    assert not [line for line in found["log"] if "child_ended" in line]


def test_without_room_for_the_routes_nothing_starts_and_a_sentence_says_why(disk: Path) -> None:
    found = seen(disk, 0)
    assert found["ended"] == 1
    assert found["log"] == [
        f"CommandError: cannot write {disk}/routes.json: No space left on device; make room there, or give another "
        "--state-dir"
    ]


def test_a_grid_on_disk_has_all_its_blocks(tmp_path: Path) -> None:
    Grid(tmp_path / "grid")
    found = (tmp_path / "grid").stat()
    assert found.st_size == grid_file.SIZE_BYTES
    assert found.st_blocks * 512 >= grid_file.SIZE_BYTES
