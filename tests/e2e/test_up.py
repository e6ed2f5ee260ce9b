"""`manage.py up` as a newcomer meets it: an answer, a curl line that works, Ctrl-C, and everything kept."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from llmgw_site.up import demo
from tests.e2e.harness import OURS, ROOT, content, wait_for
from tests.support.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

# One start, one end and a refusal are for everybody. What starts much more, or again, takes too long for that.
more_than_a_start = pytest.mark.heavy

UP = (sys.executable, "manage.py", "up")


def clean_env(state: Path) -> dict[str, str]:
    """A newcomer's environment: no setting of ours but the state folder."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
    return kept | {"LLMGW_STATE_DIR": str(state), "PYTHONUNBUFFERED": "1"}


class Up:
    """One run of a command that starts everything; its output is read from a file."""

    def __init__(
        self, folder: Path, *words: str, argv: Sequence[str] = UP, cwd: Path = ROOT, router_on: str = "127.0.0.1"
    ) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.web, self.router = f"127.0.0.1:{free_port()}", f"{router_on}:{free_port()}"
        self.output = folder / "up.log"
        with self.output.open("wb") as log:
            self.process = subprocess.Popen(
                [*argv, "--web", self.web, "--router", self.router, *words],
                cwd=cwd,
                env=clean_env(self.state),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self, start: str, seconds: float = 90) -> str:
        """The rest of the first line that begins with `start`."""

        def look() -> str | None:
            for line in self.output.read_text(errors="replace").splitlines():
                if line.startswith(start):
                    return line.removeprefix(start).strip() or " "
            assert self.process.poll() is None, self.output.read_text(errors="replace")
            return None

        return str(wait_for(look, f"{start!r} in the output", seconds))

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal sends it: to the whole foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)
        assert self.process.wait(60) == 0, self.output.read_text(errors="replace")

    def left(self) -> list[str]:
        """Processes that still carry this state folder in their environment or arguments."""
        mark, found = os.fsencode(self.state), []
        for proc in Path("/proc").glob("[0-9]*"):
            try:
                text = (proc / "environ").read_bytes() + (proc / "cmdline").read_bytes()
            except OSError:
                continue
            if mark in text and int(proc.name) != os.getpid():
                found.append((proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        return found

    def api(self, path: str) -> Any:
        key = (self.state / "manage_key").read_text().strip()
        request = urllib.request.Request(
            f"http://{self.web}/api/v1/{path}/", headers={"Authorization": f"Bearer {key}"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())["results"]


@pytest.fixture
def runs() -> Iterator[list[Up]]:
    made: list[Up] = []
    yield made
    for up in made:
        if up.process.poll() is None:
            up.process.terminate()
            up.process.wait(30)


@more_than_a_start
def test_first_answer_then_ctrl_c_then_the_same_fleet_again(tmp_path: Path, runs: list[Up]) -> None:
    up = Up(tmp_path)
    runs.append(up)
    assert up.said("answer:").strip()
    printed = shlex.split(up.said("try:"))
    assert printed[:2] == ["curl", "-N"]
    up.said("Ctrl-C")
    check_printed_curl(printed)
    (node,), (replica,) = up.api("nodes"), up.api("replicas")
    up.interrupt()
    assert up.left() == []

    again = Up(tmp_path)
    runs.append(again)
    assert again.said("answer:").strip()
    assert "password" not in again.output.read_text()  # shown once
    (node_again,), (replica_again,) = again.api("nodes"), again.api("replicas")
    assert (node_again["uid"], node_again["name"]) == (node["uid"], node["name"])
    assert (replica_again["uid"], replica_again["state"]) == (replica["uid"], "ready")
    again.interrupt()
    assert again.left() == []


def check_printed_curl(printed: list[str]) -> None:
    """The line that `up` printed streams an answer to its end."""
    streamed = subprocess.run(["curl", "-sS", *printed[1:]], capture_output=True, timeout=150, check=True).stdout
    assert "".join(filter(None, map(content, streamed.splitlines()))).strip()
    assert streamed.rstrip().endswith(b"data: [DONE]")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A run without the demo, in a folder so deep that a socket in it would be too long (107 bytes)."""
    deep = tmp_path_factory.mktemp("plain") / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    up = Up(deep, "--no-demo")
    try:
        up.said("Ctrl-C")
        yield up
        up.interrupt()
        assert up.left() == []
    finally:
        if up.process.poll() is None:
            up.process.terminate()
            up.process.wait(30)


@more_than_a_start
def test_a_crashed_child_comes_back_and_is_named(plain: Up) -> None:
    children = Path(f"/proc/{plain.process.pid}/task/{plain.process.pid}/children").read_text().split()
    (pid,) = [int(child) for child in children if b"daphne" in Path(f"/proc/{child}/cmdline").read_bytes()]
    os.kill(pid, signal.SIGKILL)
    assert "it starts again" in plain.said("web ended with code -9")
    wait_for(lambda: urllib.request.urlopen(f"http://{plain.web}/healthz", timeout=2).status == 200, "the web process")


def test_the_printed_key_asks_models_and_changes_no_fleet(plain: Up) -> None:
    key, rest = plain.said("key:").split(" ", 1)
    assert "for the router's clients" in rest
    assert "which may change the fleet" in plain.said("        the REST API's key")
    request = urllib.request.Request(f"http://{plain.web}/api/v1/nodes/", headers={"Authorization": f"Bearer {key}"})
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request, timeout=10)
    assert plain.api("nodes") == []


@more_than_a_start
def test_without_the_demo_s_model_everything_else_runs(tmp_path: Path, runs: list[Up]) -> None:
    (tmp_path / "state").mkdir()
    file = tmp_path / "catalog.yaml"
    file.write_text("models: [{name: outside, endpoints: ['http://127.0.0.1:9']}]")
    for words in (["migrate", "-v0"], ["catalog", "apply", str(file)]):
        argv = [sys.executable, "manage.py", *words]
        subprocess.run(argv, cwd=ROOT, env=clean_env(tmp_path / "state"), check=True, capture_output=True, timeout=60)
    up = Up(tmp_path)
    runs.append(up)
    up.said("Ctrl-C")
    assert "not in the catalog" in up.said("model:")
    assert "answer:" not in up.output.read_text()
    wait_for(lambda: [node["name"] for node in up.api("nodes")] == ["local"], "the agent")
    up.interrupt()


def test_a_first_answer_that_does_not_come_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "ANSWER_SECONDS", 0.2)
    looks: list[int] = []
    demo.tell_first_answer("m", f"127.0.0.1:{free_port()}", "key", Path("/logs"), lambda: looks.append(1))
    said = capsys.readouterr().out
    assert "answer: none came within 0.2 s: `manage.py explain m` says why" in said
    assert "try:    curl -N" in said
    assert looks


@more_than_a_start
def test_two_runs_never_share_a_state_folder(plain: Up) -> None:
    argv = [sys.executable, "manage.py", "up", "--no-demo", "--web", f"127.0.0.1:{free_port()}"]
    argv += ["--router", f"127.0.0.1:{free_port()}"]
    done = subprocess.run(argv, cwd=ROOT, env=clean_env(plain.state), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "cannot start: `up` is running with" in done.stderr
    assert plain.process.poll() is None


def test_a_busy_port_is_said_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        argv = [sys.executable, "manage.py", "up", "--no-demo", "--web", f"127.0.0.1:{port}"]
        env = clean_env(tmp_path / "state")
        done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert not (tmp_path / "state").exists()
