"""What an engine that ended left on its cards, and whether the kernel killed it."""

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from agent_client.hardware import xid
from agent_client.hardware.health import HELD_LIMIT_MIB

#: mm/oom_kill.c: "Out of memory: Killed process 4711 (python)", "Memory cgroup out of memory: Killed process …".
_KILLED = re.compile(r"[Oo]ut of memory: Kill(?:ed)? process (\d+) ")


def still_held(inventory: Mapping[str, Any], gpus: Iterable[str], proc: Path = Path("/proc")) -> str:
    """What lies on cards whose engine has no process any more; "" where they are empty, or can't be seen at all.

    A process that lives and is not ours is somebody else's, and was there before or came since: not to be waited for.
    """
    known = {gpu.get("uuid"): gpu for gpu in inventory.get("gpus") or []}
    return "; ".join(text for uuid in gpus if (text := _held(known.get(uuid) or {}, proc)))


def _held(gpu: Mapping[str, Any], proc: Path) -> str:
    listed = gpu.get("processes") or []
    name = f"GPU {gpu.get('index')} ({gpu.get('uuid')})"
    dead = [process for process in listed if not (proc / str(process.get("pid"))).exists()]
    if dead:
        who = ", ".join(f"pid {process.get('pid')} ({_size(process.get('memory_mib'))})" for process in dead)
        return f"{name} is still held by {who}, which ended"
    used = gpu.get("memory_used_mib")
    if not listed and used is not None and used >= HELD_LIMIT_MIB and not gpu.get("shared_memory"):
        return f"{name} still has {used} MiB in use by no process that is visible"
    return ""


def _size(mib: int | None) -> str:
    return "memory unknown" if mib is None else f"{mib} MiB"


def oom_killed(pids: Collection[int], kernel_log: Path = xid.KMSG) -> bool:
    """Whether the kernel's log names one of these; False where it can't be read."""
    return any(match is not None and int(match[1]) in pids for match in map(_KILLED.search, xid.read(kernel_log)))
