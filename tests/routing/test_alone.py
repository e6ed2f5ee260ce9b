"""A router alone, from a file: what it writes, what it keeps, and what it says of both."""

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command

from routing.dataplane import journal
from routing.dataplane.journal import Journal, Line, Used
from routing.dataplane.usage_files import Spool, UsageLog
from routing.keys import new_key
from tests.e2e.harness import ROOT, wait_for
from tests.support.ports import free_port

CHAT = {"model": "m", "messages": [{"role": "user", "content": "a b c"}]}
#: What three words cost at the echo engine.
TOKENS = 6


class Alone:
    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.catalog = folder, free_port(), folder / "catalog.yaml"
        self.text, self._prefix, self._sha256 = new_key()
        self._programs: list[subprocess.Popen[bytes]] = []
        engine = free_port()
        self._start(str(ROOT / "agent_client/programs/echo_server.py"), "--port", str(engine))
        self._models = [{"name": "m", "endpoints": [{"url": f"http://127.0.0.1:{engine}", "model": "echo"}]}]

    def _start(self, *argv: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "TMPDIR": str(self.folder)}
        with (self.folder / "log").open("ab") as log:
            program = subprocess.Popen([sys.executable, *argv], cwd=ROOT, env=env, stdout=log, stderr=log)
        self._programs.append(program)
        return program

    def router(self, *options: str, **limits: int) -> subprocess.Popen[bytes]:
        key = {"name": "ci", "prefix": self._prefix, "sha256": self._sha256, **limits}
        self.catalog.write_text(yaml.safe_dump({"models": self._models, "keys": [key]}))
        argv = ["manage.py", "router", "--catalog", str(self.catalog), "--listen", f"127.0.0.1:{self.port}"]
        router = self._start(*argv, "--drain-seconds", "1", *options)
        wait_for(lambda: self.get("/readyz"), "the router")
        return router

    def stop(self, router: subprocess.Popen[bytes]) -> None:
        router.terminate()
        assert router.wait(30) == 0

    def said(self) -> str:
        return (self.folder / "log").read_text()

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def ask(self, **more: Any) -> int:
        headers = {"Authorization": f"Bearer {self.text}", "Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, json.dumps(CHAT | more).encode(), headers)
            ) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def close(self) -> None:
        for program in self._programs:
            program.terminate()
        for program in self._programs:
            program.wait(30)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    alone = Alone(tmp_path)
    try:
        yield alone
    finally:
        alone.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_without_a_log_no_usage_is_written_and_that_is_said(alone: Alone) -> None:
    router = alone.router()
    wait_for(lambda: alone.ask() == 200, "the engine")
    (folder,) = alone.folder.glob("llmgw-router-*")
    wait_for(lambda: 'kind="completion"} 3' in alone.get("/metrics"), "its tokens in the metrics")
    assert not (folder / "usage").exists()
    assert "usage is not written; --usage-log FILE keeps" in alone.said()
    alone.stop(router)
    assert not folder.exists()


def test_a_usage_log_has_a_line_a_request_from_all_processes_and_may_be_moved_away(alone: Alone) -> None:
    log, moved = alone.folder / "usage.jsonl", alone.folder / "usage.1"
    router = alone.router("--usage-log", str(log), "--processes", "2")
    wait_for(lambda: alone.ask() == 200, "the engine")
    for _ in range(9):
        assert alone.ask() == 200
    counted = re.compile(r'^llmgw_router_requests_total\{.*status="200".*\} 10$', re.MULTILINE)
    for _ in range(6):  # whichever process answers, it tells of all
        wait_for(lambda: counted.search(alone.get("/metrics")), "the other process's count")
    assert "unwritten" not in alone.said()
    wait_for(lambda: sum(row["status"] == 200 for row in lines(log)) == 10, "a line of each")
    log.rename(moved)
    assert alone.ask() == 200
    alone.stop(router)
    (row,) = lines(log)
    assert (row["prompt_tokens"], row["completion_tokens"], row["completed"], row["model"]) == (3, 3, True, "m")
    assert len({row["uid"] for row in lines(moved) + lines(log) if row["status"] == 200}) == 11
    assert "usage is not written" not in alone.said()


@pytest.mark.heavy  # three starts of a router
def test_a_months_tokens_outlive_a_restart_with_a_state_folder(alone: Alone) -> None:
    state = alone.folder / "state"
    router = alone.router("--state-dir", str(state), tokens_per_month=TOKENS)
    wait_for(lambda: alone.ask() == 200, "the engine")
    assert alone.ask() == 429
    with pytest.raises(CommandError, match="another router runs with it"):
        call_command(
            "router",
            catalog=str(alone.catalog),
            listen=f"127.0.0.1:{free_port()}",
            state_dir=str(state),
        )
    alone.stop(router)
    assert "counts from this start on" not in alone.said()
    router = alone.router("--state-dir", str(state), tokens_per_month=TOKENS)
    assert alone.ask() == 429
    router.send_signal(signal.SIGHUP)
    alone.stop(router)
    alone.stop(alone.router(tokens_per_month=TOKENS))
    assert "tokens_per_month of ci counts from this start on; --state-dir DIR keeps the counts" in alone.said()


def test_the_largest_body_is_set_at_the_start(alone: Alone) -> None:
    alone.router("--max-body-mib", "1", "--processes", "2")
    wait_for(lambda: alone.ask() == 200, "the engine")
    words = [{"role": "user", "content": "x" * (2**20 - 200)}]
    assert alone.ask(messages=words) == 200
    assert alone.ask(messages=words * 2) == 413
    for wrong in ("0", "much", "5000"):
        with pytest.raises(CommandError, match="is no whole number from 1 to 4096"):
            call_command("router", f"--max-body-mib={wrong}")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"usage_log": "/nowhere/usage.jsonl"}, "cannot use --usage-log with a control plane"),
        ({"state_dir": "/nowhere"}, "cannot use --state-dir with a control plane"),
        ({"usage_log": "/proc/usage", "catalog": "x"}, "cannot write usage to /proc/usage: .*; give another"),
        ({"state_dir": "/proc/state", "catalog": "x"}, "cannot use /proc/state: .*; give another --state-dir"),
    ],
)
def test_what_cannot_be_kept_is_refused_at_the_start(options: dict[str, str], why: str) -> None:
    with pytest.raises(CommandError, match=why):
        call_command("router", listen=f"127.0.0.1:{free_port()}", **options)


# -- a disk that is full ----------------------------------------------------------------------------------------------


def used(number: int) -> Used:
    return Used(f"{number:032x}", 0.0, None, "m", "e", "/v1/chat/completions", 200, True, 1, 1, 0.1)


def test_a_usage_log_on_a_full_disk_has_whole_lines_only_and_gets_the_rest_later(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    written = Journal(UsageLog(path))
    for number in range(5):
        written.usage(used(number))
    written.flush()
    before = path.read_bytes()
    for number in range(5, 10):
        written.usage(used(number))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, hard))  # a write over it is a short one, then none
    try:
        written.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    written.flush()
    assert [int(row["uid"], 16) for row in lines(path)] == list(range(10))


def test_what_no_disk_took_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "USAGE_ROWS", 3)
    monkeypatch.setattr(journal, "LOG_LINES", 2)
    full = Journal(UsageLog(tmp_path), log_file=os.open(os.devnull, os.O_WRONLY))  # a folder takes no lines
    for number in range(5):
        full.usage(used(number))
        full.line(Line(0.0, "i", None, "GET", "/healthz", None, None, 200, 0.1))
    assert full.lost() == {"usage": 2, "access_log": 3}
    full.flush()
    full.usage(used(5))
    assert full.lost() == {"usage": 1}  # what could not be written takes its room still
    assert full.lost() == {}


def test_a_full_disk_is_said_once_until_it_takes_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written = Journal(Spool(tmp_path))

    def full(spool: Spool, pieces: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / str(time.time_ns())))

    def flush(times: int) -> int:
        caplog.clear()
        for _ in range(times):
            written.usage(used(0))
            written.flush()
        return len(caplog.records)

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "write", full)
        assert flush(5) == 1
    assert flush(2) == 0
    monkeypatch.setattr(Spool, "write", full)
    assert flush(2) == 1
