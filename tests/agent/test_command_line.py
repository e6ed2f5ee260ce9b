"""What `python -m agent_client` says to whoever types it."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_client import __main__ as program
from tests.e2e.harness import ROOT


@pytest.mark.parametrize("package", ["websockets", "yaml"])
def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(package: str) -> None:
    hidden = (
        f"import sys, runpy; sys.modules[{package!r}] = None; runpy.run_module('agent_client', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", hidden], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith(f"cannot start: the Python package {package}")
    assert "pip install -r requirements-agent.txt" in done.stderr


class Stopped:
    """An agent that is stopped at once."""

    def __init__(self, config: Any) -> None: ...

    async def run(self, *, stop_engines: bool) -> None: ...


class Kept:
    """A ledger with as many engines."""

    def __init__(self, pids: list[int]) -> None:
        self.entries = {str(number): type("Entry", (), {"pid": pid}) for number, pid in enumerate(pids)}


@pytest.mark.parametrize(
    ("pids", "flags", "said"),
    [
        ([1, 2, 3, 0], [], "3 engines keep running, and the next start takes them back; `run --stop-engines`"),
        ([1], [], "1 engine keeps running"),
        ([1], ["--stop-engines"], ""),
        ([], [], "the agent has ended, and no engine of it runs on"),
        ([], ["--stop-engines"], "the agent has ended, and no engine of it runs on"),
    ],
)
def test_who_stops_the_agent_is_told_what_runs_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pids: list[int],
    flags: list[str],
    said: str,
) -> None:
    monkeypatch.setattr(program, "Agent", Stopped)
    monkeypatch.setattr(program, "Ledger", lambda path: Kept(pids))
    assert program.main(["--state-dir", str(tmp_path), "run", *flags]) == 0
    told = capsys.readouterr().err
    assert told.startswith(said) if said else told == ""


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["-m", "agent_client", "validate", "/dev/zero"], "it has more than 1,000,000 bytes"),
        (["-m", "agent_client", "validate", "--inventory", "/dev/zero", "{profile}"], "more than 16,000,000 bytes"),
        (["-m", "agent_client", "--config", "/dev/zero", "status"], "it has more than 1,000,000 bytes"),
        (["manage.py", "catalog", "validate", "/dev/zero"], "it has more than 1,000,000 bytes"),
        (["manage.py", "router", "--catalog", "/dev/zero"], "it has more than 1,000,000 bytes"),
    ],
    ids=lambda each: each[-1] if isinstance(each, list) else "",
)
def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path, argv: list[str], told: str) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text("engine: echo\ngpus: 0\n")
    argv = [word.format(profile=profile) for word in argv]
    env = {**os.environ, "LLMGW_STATE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=50,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31)),
    )
    assert done.returncode != 0
    assert told in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_validate_prints_nothing_that_moves_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "profile.yaml"
    profile = {"engine": "echo", "gpus": 0, "env": {"A": "\x1b[31m"}, "options": {"\x1b[31m": 1}, "\u202ex": 1}
    for each in (profile, {name: profile[name] for name in ("engine", "gpus", "env")}):
        file.write_text(json.dumps(each))
        program.main(["--state-dir", str(tmp_path), "validate", str(file), "--show-command"])
        told = capsys.readouterr()
        assert (told.out + told.err).replace("\n", "").isprintable()
