"""Every command of the README, run as it stands there: only ports, addresses and folders are this test's own."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e import test_fresh
from tests.e2e.harness import OURS, ROOT, House, wait_for
from tests.e2e.test_up import Up, clean_env
from tests.support.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]

#: Commands that install something or need an empty folder, and the test that runs each.
ELSEWHERE = {
    "script/server": test_fresh.test_script_server_reaches_an_answer_of_a_real_model,
    "python -m pip install -r requirements-agent.txt": test_fresh.test_the_agent_runs_with_its_own_requirements_alone,
    "python -m pip install -r requirements.txt": test_fresh.test_script_server_reaches_an_answer_of_a_real_model,
    ". .venv/bin/activate": None,  # this test's own Python is that environment's
}
CONTROL_PLANE = "script/server --no-demo --web 127.0.0.1:8000 --router 0.0.0.0:8080"
INVENTORY = "python -m agent_client inventory"
AGENT = "python -m agent_client --config agent.yaml run"
VALIDATE = "python manage.py catalog validate catalog.yaml"
APPLY = "python manage.py catalog apply catalog.yaml"
EXPLAIN = "python manage.py explain qwen2.5-7b-instruct"
KEY = "python manage.py router_key ci"
ENTRY = "python manage.py router_key ci --catalog-entry"
ROUTER = "python manage.py router --catalog endpoints.yaml --listen 127.0.0.1:8080"
HERE = [CONTROL_PLANE, INVENTORY, AGENT, VALIDATE, APPLY, EXPLAIN, KEY, ENTRY, ROUTER]


def block(name: str) -> str:
    """The YAML block that holds this file."""
    (text,) = re.findall(rf"```yaml\n((?=[^`]*{re.escape(name)})[^`]*)```", README)
    return str(text)


def test_every_command_of_the_readme_is_run() -> None:
    assert set(LINES) == {*ELSEWHERE, *HERE}


class Shell:
    """Runs a README line in a folder that looks like the clone, in an environment without settings of ours."""

    def __init__(self, folder: Path, state: Path) -> None:
        self.folder = folder
        self.env = clean_env(state) | {"PYTHONPATH": str(ROOT)}
        for name in ("manage.py", "agent_client"):
            (folder / name).symlink_to(ROOT / name)

    def argv(self, line: str, **changes: str) -> list[str]:
        words = [changes.get(word, word) for word in shlex.split(line)]
        return [sys.executable, *words[1:]] if words[0] == "python" else words

    def run(self, line: str) -> str:
        done = subprocess.run(
            self.argv(line), cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.mark.heavy
def test_two_machines(tmp_path: Path) -> None:
    program, demo, *_addresses = CONTROL_PLANE.split()
    up = Up(tmp_path, demo, argv=[str(ROOT / program)], router_on="0.0.0.0")
    shell = Shell(tmp_path, up.state)
    agent: subprocess.Popen[bytes] | None = None
    try:
        up.said("Ctrl-C")
        config = yaml.safe_load(block("join_secret_file"))
        config |= {"server": f"ws://{up.web}", "mgmt_addr": "127.0.0.1", "state_dir": str(tmp_path / "agent")}
        config["join_secret_file"] = str(up.state / "join_secret")
        (tmp_path / "agent.yaml").write_text(yaml.safe_dump(config))
        (tmp_path / "catalog.yaml").write_text(block("# catalog.yaml"))
        assert "GPU source:" in shell.run(INVENTORY)
        with (tmp_path / "agent.log").open("wb") as log:
            agent = subprocess.Popen(shell.argv(AGENT), cwd=tmp_path, env=shell.env, stdout=log, stderr=log)
        assert "is valid: 1 models" in shell.run(VALIDATE)
        assert "qwen2.5-7b-instruct" in shell.run(APPLY)
        wait_for(lambda: "gpu-07" in shell.run(EXPLAIN), "the node in explain")
        said = shell.run(EXPLAIN)
        assert "qwen2.5-7b-instruct: 2 wanted" in said
        assert shell.run(KEY).startswith("llmgw_")
        assert "no changes" in shell.run(APPLY)
    finally:
        if agent is not None:
            agent.terminate()
            agent.wait(20)
        if up.process.poll() is None:
            up.interrupt()
    assert up.left() == []


def test_a_router_alone(tmp_path: Path) -> None:
    shell = Shell(tmp_path, tmp_path / "state")
    house = House(tmp_path)
    house.env = {k: v for k, v in house.env.items() if not k.startswith(OURS)} | shell.env
    engine_port = free_port()
    echo = str(ROOT / "agent_client" / "programs" / "echo_server.py")
    try:
        argv = [sys.executable, echo, "--port", str(engine_port), "--served-model-name", "qwen2.5-7b-instruct"]
        house.start("engine", argv)
        text, entry = shell.run(ENTRY).splitlines()
        house.key = text.rsplit(" ", 1)[1]
        endpoints = block("# endpoints.yaml").replace("  # the line that router_key printed", entry)
        assert entry in endpoints
        for address in ("10.1.2.7:8000", "10.1.2.8:8000"):
            assert address in endpoints
            endpoints = endpoints.replace(address, f"127.0.0.1:{engine_port}")
        (tmp_path / "endpoints.yaml").write_text(endpoints)
        listen = f"127.0.0.1:{house.router_port}"
        house.start("router", shell.argv(ROUTER, **{"127.0.0.1:8080": listen}), cwd=tmp_path)
        wait_for(lambda: house.chat("qwen2.5-7b-instruct") == "hello there", "an answer")
    finally:
        house.close()
