"""Agents killed at any moment, the ledger torn or an older copy: never two engines of one shard, none left behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import ROOT


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(30, marks=pytest.mark.timeout(90)),
        pytest.param(500, marks=[pytest.mark.long, pytest.mark.timeout(1200)]),
    ],
)
def test_killed_agents_leave_no_duplicate_and_no_orphan(rounds: int, tmp_path: Path) -> None:
    """Failures 2."""
    argv = [sys.executable, "-m", "tests.agent.restarts", str(tmp_path), str(rounds), "7"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{rounds} rounds: {found}")
    assert found["duplicates"] == []
    assert found["lost"] == []
    assert found["put_back"] > rounds / 20
    assert found["as_wanted"]
    assert found["orphans"] == 0
    assert found["adoptions"] > rounds / 3
    assert found["adopt_p99"] < 2.0
