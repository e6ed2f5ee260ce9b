"""Facts and signals of processes: identity by pid and start time, membership by group and by environment marker."""

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

SHARD_VARIABLE = "LLMGW_SHARD"
STATE_VARIABLE = "LLMGW_AGENT_MARK"
PORT_VARIABLE = "LLMGW_ENGINE_PORT"
PROC = Path("/proc")


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which a process started; None when there is none, or a zombie."""
    try:
        fields = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def same_process(pid: int, started: int) -> bool:
    """Whether `pid` still is the process that started at that tick: pids are reused."""
    return pid > 0 and start_time(pid) == started


def marked(mark: str) -> dict[int, str]:
    """Every process that carries this agent's mark → its `shard@epoch`. Finds children that left group and session."""
    out: dict[int, str] = {}
    for entry in PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() not in environ:
            continue
        variables = dict(item.split(b"=", 1) for item in environ.split(b"\0") if b"=" in item)
        if variables.get(STATE_VARIABLE.encode()) == mark.encode() and start_time(int(entry.name)) is not None:
            out[int(entry.name)] = variables.get(SHARD_VARIABLE.encode(), b"").decode(errors="replace")
    return out


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def signal_group(pid: int, started: int, number: signal.Signals) -> None:
    """Signal the group that a process leads, if it still is that process."""
    if same_process(pid, started):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)


def variable(pid: int, name: str) -> str | None:
    """One variable of the environment that a process was started with."""
    try:
        environ = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    prefix = name.encode() + b"="
    return next((v[len(prefix) :].decode(errors="replace") for v in environ.split(b"\0") if v.startswith(prefix)), None)


def shared_memory(pids: Iterable[int]) -> set[str]:
    """Files of /dev/shm that these processes have mapped: a killed engine leaves them, and they are memory."""
    found: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in (PROC / str(pid) / "maps").read_text(encoding="utf-8", errors="replace").splitlines():
                path = line.rpartition(" ")[2]
                if path.startswith("/dev/shm/"):  # noqa: S108
                    found.add(path)
    return found


def remove_shared_memory(paths: Iterable[str]) -> None:
    """Those of the given ones that no process maps any more."""
    left = {path for path in paths if Path(path).exists()}
    if left:
        left -= shared_memory(int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal())
    for path in left:
        with contextlib.suppress(OSError):
            os.unlink(path)
