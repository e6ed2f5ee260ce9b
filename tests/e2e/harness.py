"""Real processes on loopback for end-to-end tests: bus, web, worker, beat, router, agent. Each ends by its pid."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
STANDIN = ROOT / "tests" / "support" / "vllm_standin"
#: Multiplies every limit; slow machines raise it.
PATIENCE = float(os.environ.get("LLMGW_TEST_PATIENCE", "1"))
OURS = ("LLMGW_", "FLEET_", "DATABASE_URL", "DJANGO_")
SECRET = "e2e-join-secret-canary"


def wait_for(check: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """Poll until `check` gives something true; the assertion names what was waited for."""
    deadline = time.monotonic() + seconds * PATIENCE
    last: Any = None
    while time.monotonic() < deadline:
        try:
            last = check()
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            last = error
        if last and not isinstance(last, Exception):
            return last
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s for {what}; last: {last!r}")


class House:
    """One control plane, one router and agents, in a folder of their own."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self.web_port, self.router_port = free_port(), free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(OURS)},
            "LLMGW_STATE_DIR": str(folder),
            "LLMGW_SECRET_KEY": "e2e-secret-key-0123456789-0123456789-0123456789-abc",
            "LLMGW_JOIN_SECRET": SECRET,
            "LLMGW_REDIS_URL": f"unix://{folder}/bus.sock",
            "FLEET_HEARTBEAT_SECONDS": "0.5",
            "FLEET_UNREACHABLE_AFTER_SECONDS": "3",
            "FLEET_LOST_AFTER_SECONDS": "7",
            "FLEET_START_GRACE_SECONDS": "0",
            "FLEET_LOSS_SPACING_SECONDS": "0",
            "LLMGW_RECONCILE_PERIOD_SECONDS": "1",
            "LLMGW_JUDGE_PERIOD_SECONDS": "0.5",
            "VLLM_STANDIN_CHUNK_DELAY": "0.3",
            "PATH": f"{STANDIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            **env,
        }

    # -- processes ----------------------------------------------------------------------------------------------------

    def start(self, name: str, argv: list[str], cwd: Path = ROOT, **env: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("ab")
        process = subprocess.Popen(
            argv, cwd=cwd, env={**self.env, **env}, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        log.close()
        self.processes[name] = process
        return process

    def manage(self, *words: str, **kwargs: Any) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *words], cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def bus(self) -> None:
        from llmgw_site.up.bus import server_argv

        self.start("bus", server_argv(self.folder / "bus.sock"))
        wait_for((self.folder / "bus.sock").exists, "the bus")

    def control_plane(self, *, wait: bool = True) -> None:
        self.web()
        celery = [sys.executable, "-m", "celery", "-A", "llmgw_site.celery"]
        self.start("worker", [*celery, "worker", "-P", "solo", "-l", "INFO"])
        self.start("beat", [*celery, "beat", "-s", str(self.folder / "beat"), "--pidfile="])
        if wait:
            self.wait_for_web()

    def web(self) -> None:
        from llmgw_site.up.web import daphne_argv

        self.start("web", daphne_argv("127.0.0.1", str(self.web_port)), PGAPPNAME="web")

    def router(self) -> None:
        self.start("router", [sys.executable, "manage.py", "router", "--listen", f"127.0.0.1:{self.router_port}"])

    def wait_for_web(self) -> None:
        wait_for(lambda: self.get_text(self.web_port, "/healthz"), "the web process")

    def agent(
        self, node: str = "node-a", python: str = sys.executable, cwd: Path = ROOT, **env: str
    ) -> subprocess.Popen[bytes]:
        argv = [python, "-m", "agent_client", "--server", f"ws://127.0.0.1:{self.web_port}"]
        argv += ["--node-id", node, "--mgmt-addr", "127.0.0.1", "--state-dir", str(self.folder / node), "run"]
        return self.start(node, argv, cwd, **{"LLMGW_AGENT_JOIN_SECRET": SECRET, "PYTHONPATH": str(cwd), **env})

    def up(self, migrated: Path | None = None) -> None:
        """`migrated`: a SQLite file with all tables, to start from; else they are made."""
        self.bus()
        if migrated is None:
            self.manage("migrate", "-v0")
        else:
            shutil.copy(migrated, self.folder / migrated.name)
        self.key = self.manage("router_key", "e2e", "--manage")
        self.control_plane(wait=False)
        self.router()
        self.wait_for_web()
        wait_for(lambda: self.get_text(self.router_port, "/healthz"), "the router")

    def kill(self, *names: str) -> None:
        """kill -9, as an outage does."""
        for name in names:
            self.processes[name].kill()
        for name in names:
            self.processes.pop(name).wait()
        if "router" in names:  # its children hear of it by a signal: until then they would answer for a new router
            wait_for(lambda: not self.is_listening(self.router_port), "the router's children to end")

    @staticmethod
    def is_listening(port: int) -> bool:
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", port)) == 0

    def close(self) -> None:
        for name in reversed(list(self.processes)):
            process = self.processes[name]
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in self.engine_pids():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # an engine leads a group of its own; vLLM has workers in it

    def engine_pids(self, node: str | None = None) -> list[int]:
        """Engines that agents of this house started, found by their ledgers."""
        pids = []
        for ledger in self.folder.glob(f"{node or '*'}/ledger.json"):
            try:
                entries = json.loads(ledger.read_bytes().partition(b"\n")[2])["entries"]
            except ValueError:
                continue
            pids += [entry["pid"] for entry in entries if entry["pid"] and Path(f"/proc/{entry['pid']}").exists()]
        return pids

    # -- asking -------------------------------------------------------------------------------------------------------

    def request(self, port: int, path: str, body: Any = None, method: str | None = None, timeout: float = 30) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data, headers=headers, method=method)
        return urllib.request.urlopen(asked, timeout=timeout)

    def get_text(self, port: int, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def api(self, path: str, body: Any = None, method: str | None = None) -> Any:
        with self.request(self.web_port, f"/api/v1/{path}", body, method) as answer:
            return json.loads(answer.read() or b"null")

    def node(self, name: str = "node-a") -> dict[str, Any]:
        return dict(self.api(f"nodes/{name}/"))

    def replica(self) -> dict[str, Any]:
        found = self.api("replicas/")["results"]
        return dict(found[0]) if found else {"state": None}

    def stream(self, model: str, words: str) -> Any:
        """Opens a streamed chat; iterate over its lines."""
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": words}]}
        return self.request(self.router_port, "/v1/chat/completions", body)

    def chat(self, model: str, words: str = "hello there") -> str:
        body = {"model": model, "messages": [{"role": "user", "content": words}]}
        with self.request(self.router_port, "/v1/chat/completions", body) as answer:
            return str(json.loads(answer.read())["choices"][0]["message"]["content"])


def content(line: bytes) -> str | None:
    """The words of one stream line; None for anything else."""
    if not line.startswith(b"data: {"):
        return None
    choices = json.loads(line[6:])["choices"]
    return str(choices[0]["delta"].get("content", "")) if choices else None
