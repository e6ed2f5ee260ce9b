"""`manage.py up`: the whole control plane in one command, with a demo that answers."""

import argparse
import fcntl
import os
import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from llmgw_site.up import demo, first_run
from llmgw_site.up.bus import NoBus, private_folder, server_argv, socket_path
from llmgw_site.up.children import Child, Children, say
from llmgw_site.up.web import daphne_argv

LOCK = "up.lock"


class Command(BaseCommand):
    help = "Run everything: bus, web, Celery worker and beat, router, and a local agent with a small model."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--no-demo", action="store_true", help="the control plane alone: no agent, no model")
        parser.add_argument("--web", default="127.0.0.1:8000", metavar="HOST:PORT")
        parser.add_argument("--router", default="127.0.0.1:8080", metavar="HOST:PORT")

    def handle(self, *args: Any, **options: Any) -> None:
        state: Path = settings.STATE_DIR
        if (state / LOCK).is_file():
            os.close(_only_one(state))  # before the ports: those of a run that goes on are taken by it
        web = _free(options["web"], "--web")
        _free(options["router"], "--router")
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = _only_one(state)
        Path(settings.STATIC_ROOT).mkdir(exist_ok=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _interrupt)
        children = Children()
        env = _environment(state)
        try:
            if not os.environ.get("LLMGW_REDIS_URL"):
                _start_bus(children, state, env)
            call_command("migrate", verbosity=0, interactive=False)
            password = first_run.make_admin()
            key, new = first_run.make_key("first", state / "first_key")
            first_run.make_key("first-manage", state / "manage_key", may_manage=True)
            _start(children, state, env, options)
            _wait(children, lambda: _ok(f"http://{options['web']}/healthz"), "the web process", state)
            say(f"admin:  http://{web[0]}:{web[1]}/admin/")
            if password:
                say(f"        user admin, password {password}   (shown once)")
            _tell_keys(state, key if new else "")
            if not options["no_demo"]:
                self._demo(children, state, env, f"ws://127.0.0.1:{web[1]}", options["router"], key)
            say("Ctrl-C stops everything.")
            while True:
                children.look()
                time.sleep(0.3)
        except NoBus as error:
            raise CommandError(str(error))
        except KeyboardInterrupt:
            say("stopping")
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            children.stop()
            os.close(lock)

    def _demo(self, children: Children, state: Path, env: dict[str, str], server: str, router: str, key: str) -> None:
        name = demo.add_model()
        path = state / "agent.yaml"
        agent_dir = state / "agent"
        first_run.write_agent_file(path, server=server, state_dir=agent_dir, secret_file=state / "join_secret")
        argv = [sys.executable, "-m", "agent_client", "--config", str(path), "run", "--stop-engines"]
        children.start(Child(name="agent", argv=argv, env=env, log=state / "logs/agent.log", stop_seconds=20))
        if name is None:
            say("model:  the demo's is not in the catalog, so there is no first answer; the agent runs what is there")
        else:
            demo.tell_first_answer(name, router, key, state / "logs", children.look)


def _tell_keys(state: Path, new_key: str) -> None:
    if new_key:
        say(f"key:    {new_key}   (for the router's clients; shown once; kept in {state / 'first_key'})")
    if first_run.may_manage("first"):
        say("        WARNING: the key `first` may also change the fleet; the admin's Keys take that away")
    say(f"        the REST API's key, which may change the fleet, is in {state / 'manage_key'}")


def _only_one(state: Path) -> int:
    """The lock of the state folder, held until this process ends; two would share one database and one socket."""
    handle = os.open(state / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise CommandError(f"cannot start: `up` is running with {state} already; stop it, or set LLMGW_STATE_DIR")
    return handle


def _environment(state: Path) -> dict[str, str]:
    env = dict(os.environ)
    env["LLMGW_STATE_DIR"] = str(state)
    env["PYTHONUNBUFFERED"] = "1"
    secret_key = first_run.kept_secret(state / "secret_key", 48)
    if not os.environ.get("LLMGW_SECRET_KEY"):
        settings.SECRET_KEY = secret_key
    if not os.environ.get("LLMGW_JOIN_SECRET"):
        first_run.kept_secret(state / "join_secret", 32)
        env.setdefault("LLMGW_JOIN_SECRET_FILE", str(state / "join_secret"))
    return env


def _start_bus(children: Children, state: Path, env: dict[str, str]) -> None:
    path = socket_path(state)
    private_folder(path.parent)
    path.unlink(missing_ok=True)
    children.start(Child(name="bus", argv=server_argv(path), env=env, log=state / "logs/bus.log"))
    deadline = time.monotonic() + 10
    while not path.exists():
        if time.monotonic() > deadline:
            raise CommandError(f"cannot start the bus; see {state / 'logs/bus.log'}")
        time.sleep(0.02)


def _start(children: Children, state: Path, env: dict[str, str], options: dict[str, Any]) -> None:
    address, _, port = options["web"].rpartition(":")
    python = [sys.executable, "-m"]
    celery = [*python, "celery", "-A", "llmgw_site.celery"]
    manage = str(settings.BASE_DIR / "manage.py")
    commands = {
        "web": daphne_argv(address, port),
        "worker": [*celery, "worker", "-P", "solo", "-l", "WARNING"],
        "beat": [*celery, "beat", "-s", str(state / "beat"), "--pidfile=", "-l", "WARNING"],
        "router": [sys.executable, manage, "router", "--listen", options["router"]],
    }
    for name, argv in commands.items():
        children.start(Child(name=name, argv=argv, env=env, log=state / f"logs/{name}.log"))


def _free(listen: str, flag: str) -> tuple[str, int]:
    """The address and port of a flag; a clear error when the port is taken, before anything starts."""
    address, _, port = listen.rpartition(":")
    if not address or not port.isdecimal():
        raise CommandError(f"cannot use {flag} {listen!r}: give HOST:PORT, such as 127.0.0.1:8000")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, int(port)))
        except OSError as error:
            raise CommandError(f"cannot listen on {listen}: {error.strerror}; give another port with {flag}")
    return address, int(port)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _wait(children: Children, check: Any, what: str, state: Path, seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        children.look()
        if found := check():
            return found
        time.sleep(0.2)
    raise CommandError(f"cannot go on: {what} did not come within {seconds:g} s; see {state / 'logs'}")


def _ok(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310  (an http URL of our own)
            return bool(answer.status == 200)
    except OSError:
        return False
