"""Who this agent is: the identity that the server issued, the machine, the boot, and this one process."""

import fcntl
import hashlib
import json
import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path


class StateDirBusy(RuntimeError):
    """cannot start: another agent uses this state directory, or a copy of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    node_uid: str
    credential: str


def lock_state_dir(state_dir: Path) -> int:
    """Take the state directory for this process; the lock ends with it. Raises StateDirBusy."""
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise StateDirBusy(f"cannot start: another agent uses {state_dir}; give this one another --state-dir") from None
    return handle


def hold_identity(identity: Identity) -> socket.socket:
    """Be the one agent of this machine with this identity, until the process ends. Raises StateDirBusy.

    The lock of a state directory says nothing of a copy of it, whose agent would end the other's engines. The name is
    an abstract one of the kernel's (unix(7)), so that nothing is left of it whatever happens to the process.
    """
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    name = hashlib.sha256(identity.node_uid.encode()).hexdigest()[:32]
    try:
        held.bind(f"\0llmgw-agent-{name}")
    except OSError:
        held.close()
        raise StateDirBusy(
            "cannot start: another agent runs on this machine with the identity that is in this state directory, of "
            "which one is a copy; run `python -m agent_client join` with this --state-dir to enrol it anew"
        ) from None
    return held


def load_identity(state_dir: Path) -> Identity | None:
    try:
        data = json.loads((state_dir / "identity.json").read_text(encoding="utf-8"))
        return Identity(node_uid=str(data["node_uid"]), credential=str(data["credential"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save_identity(state_dir: Path, identity: Identity) -> None:
    data = json.dumps({"node_uid": identity.node_uid, "credential": identity.credential})
    temporary = state_dir / "identity.json.new"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(state_dir / "identity.json")


def forget_identity(state_dir: Path) -> bool:
    path = state_dir / "identity.json"
    existed = path.exists()
    path.unlink(missing_ok=True)
    return existed


def machine_id() -> str:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            if text := Path(path).read_text(encoding="utf-8").strip():
                return text
        except OSError:
            continue
    return f"mac-{uuid.getnode():012x}"


def boot_id() -> str:
    """Changes with each boot of the machine; all engines of an older one are dead."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"


INSTANCE_ID = uuid.uuid4().hex
