"""The project in an empty folder, with nothing but Python and pip: what a newcomer and a GPU machine install."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import ROOT, House, content, wait_for
from tests.e2e.test_up import Up, check_printed_curl, clean_env

pytestmark = [pytest.mark.e2e, pytest.mark.fresh, pytest.mark.timeout(600)]
NOT_IN_A_CLONE = shutil.ignore_patterns(".git", ".venv", "var", "__pycache__", ".*_cache", ".hypothesis")


def test_script_server_reaches_an_answer_of_a_real_model(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(ROOT, clone, ignore=NOT_IN_A_CLONE)
    up = Up(tmp_path, argv=["script/server"], cwd=clone)
    try:
        assert "SmolLM2" in up.said("model:", 400)
        assert "Graphics Processing Unit" in up.said("answer:")
        printed = shlex.split(up.said("try:"))
        check_printed_curl(printed)
        up.interrupt()
        assert up.left() == []
    finally:
        if up.process.poll() is None:
            up.process.terminate()
            up.process.wait(30)


def test_the_agent_runs_with_its_own_requirements_alone(house: House, tmp_path: Path) -> None:
    machine = tmp_path / "gpu-machine"
    machine.mkdir()
    shutil.copytree(ROOT / "agent_client", machine / "agent_client", ignore=NOT_IN_A_CLONE)
    subprocess.run([sys.executable, "-m", "venv", ".venv"], cwd=machine, check=True)
    python = str(machine / ".venv" / "bin" / "python")
    requirements = str(ROOT / "requirements-agent.txt")
    subprocess.run([python, "-m", "pip", "install", "-q", "-r", requirements], cwd=machine, check=True)
    env = clean_env(machine / "unused") | {"LLMGW_AGENT_STATE_DIR": str(machine / "state")}
    django = subprocess.run([python, "-c", "import django"], cwd=machine, env=env, capture_output=True)
    assert django.returncode != 0  # it is not there to be imported
    inventory = subprocess.run(
        [python, "-m", "agent_client", "inventory", "--json"], cwd=machine, env=env, capture_output=True, check=True
    )
    assert json.loads(inventory.stdout)["version"] == 1
    house.agent(python=python, cwd=machine)
    house.api("models/", {"name": "echo", "profile": {"engine": "echo", "gpus": 0}})
    wait_for(lambda: house.replica()["state"] == "ready", "the replica")
    wait_for(lambda: house.chat("echo") == "hello there", "the route")
    with house.stream("echo", "a b") as answer:
        assert "".join(filter(None, map(content, answer))) == "a b"
