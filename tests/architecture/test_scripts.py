"""The scripts: what they tell without installing anything, and what they install once."""

import shutil
import subprocess
from pathlib import Path

import pytest

from llmgw_site.management.commands.up import Command
from tests.e2e.harness import ROOT


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The scripts and requirements, with a Python that says what pip is told and installs nothing."""
    shutil.copytree(ROOT / "script", tmp_path / "script")
    for file in ROOT.glob("requirements*.txt"):
        shutil.copy(file, tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\necho "ran: $*"\n')
    python.chmod(0o755)
    return tmp_path


def run(clone: Path, *argv: str) -> str:
    done = subprocess.run(argv, cwd=clone, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout


@pytest.mark.parametrize("name", ["server", "test", "check"])
def test_help_installs_nothing(clone: Path, name: str) -> None:
    said = run(clone, f"script/{name}", "--help")
    assert "ran:" not in said
    assert not list((clone / ".venv").glob("installed-*"))
    assert said.strip()


def test_the_server_s_help_names_each_option() -> None:
    said = (ROOT / "script" / "server").read_text()
    given = [
        option
        for action in Command().create_parser("manage.py", "up")._actions
        for option in action.option_strings
        if action.dest in ("no_demo", "web", "router")
    ]
    assert len(given) == 3
    for option in given:
        assert f"#   {option} " in said, option


def test_the_demo_is_installed_once(clone: Path) -> None:
    assert "--no-deps -r requirements-demo.txt" in run(clone, "script/server")
    again = run(clone, "script/server", "--web", "127.0.0.1:1")
    assert again == "ran: manage.py up --web 127.0.0.1:1\n"
