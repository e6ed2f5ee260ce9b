"""Signs that a process is an engine's though it left group, session and environment: its output, and its parents.

Where an engine has no cgroup of its own these find what it started as a daemon. Each is proof: only what the agent
itself spawned was given that output, and a parent is the kernel's word at the moment of the look.
"""

import os
from pathlib import Path

from agent_client.supervisor import processes

_APPENDS = os.O_WRONLY | os.O_APPEND  # as the supervisor opens it; who only reads along has not


def writers(folder: Path) -> dict[int, str]:
    """Every process whose stdout or stderr is an engine's output in `folder` → its `shard@epoch`. Reads /proc."""
    prefix = f"{os.path.realpath(folder)}/"
    out: dict[int, str] = {}
    for name in os.listdir(processes.PROC):
        if not name.isdecimal():
            continue
        for number in ("1", "2"):
            try:  # words, not Paths: it is asked of every process of the machine
                target = os.readlink(f"{processes.PROC}/{name}/fd/{number}")
                if target.startswith(prefix) and (label := _label(target)):
                    out |= {int(name): label} if _appends(processes.PROC / name / "fdinfo" / number) else {}
            except (OSError, ValueError):
                continue
    return out


def descendants(pid: int) -> dict[int, int]:
    """Its children, their children and so on → start time of each. Costs by their number, not by the machine's."""
    out: dict[int, int] = {}
    waiting = [pid]
    while waiting:
        for task in _tasks(waiting.pop()):
            started = {child: processes.start_time(child) for child in _children(task)}
            for child in _children(task):  # again: a number that went to a stranger meanwhile is not there any more
                if (since := started.get(child)) is not None and child not in out:
                    out[child] = since
                    waiting.append(child)
    return out


def _tasks(pid: int) -> list[Path]:
    try:
        return list((processes.PROC / str(pid) / "task").iterdir())
    except OSError:
        return []


def _children(task: Path) -> list[int]:
    try:
        return [int(word) for word in (task / "children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def _label(target: str) -> str:
    """Out of `uid-rank@epoch.log`, as supervisor.choosing names it; "" where it is not such a name."""
    name = Path(target.removesuffix(" (deleted)")).name
    shard, _, epoch = name.removesuffix(".log").rpartition("@")
    uid, _, rank = shard.rpartition("-")
    return f"{uid}/{rank}@{epoch}" if uid and rank.isdecimal() and epoch.isdecimal() else ""


def _appends(path: Path) -> bool:
    words = path.read_text(encoding="ascii").split()
    flags = int(words[words.index("flags:") + 1], 8)
    return flags & (os.O_ACCMODE | os.O_APPEND) == _APPENDS
