"""An engine's own cgroup (v2), where this agent was given the right to make one: then the kernel knows its whole tree.

It finds children that left group, session and environment, ends all of them at once, and counts what the OOM killer
took. Elsewhere the marks in the environment have to do, and nothing is said: no feature hangs on it. No controller is
switched on here: a service whose own cgroup has controllers for its children could not be started again beside them.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

#: Pure v2, and v2 beside v1.
MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
PROC = Path("/proc")
_ENTER = '{ echo 0 >"$1"; } 2>/dev/null; shift; exec "$@"'  # 0: the process that writes
#: Set by systemd on what Delegate= gives away; without it even root leaves systemd's tree alone.
_DELEGATED = ("user.delegate", "trusted.delegate")


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Those of one agent, below `base`; `mark` tells them from another agent's."""

    base: Path
    mark: str

    def make(self, label: str) -> str:
        """A new one for what is about to be started; "" where that can't be."""
        path = self._path(label)
        try:
            path.mkdir(exist_ok=True)
        except OSError:
            return ""
        return str(path)

    def find(self, label: str) -> str:
        """The one that was made for it, if it is there; else ""."""
        path = self._path(label)
        return str(path) if path.is_dir() else ""

    def marked(self) -> dict[int, str]:
        """Every process in one of them → its label."""
        return {pid: label for path, label in self._own() for pid in pids(path)}

    def sweep(self) -> None:
        """Remove those that are empty: an agent that was killed had no time to."""
        for path, _ in self._own():
            remove(path)

    def known(self, recorded: str, label: str) -> str:
        """Where it is now; or where it was recorded, when the agent itself was elsewhere; "" where that is not ours."""
        path = Path(recorded)
        ours = path.name == self._path(label).name and any(path.is_relative_to(mount) for mount in MOUNTS)
        return self.find(label) or (recorded if ours and ".." not in path.parts and path.is_dir() else "")

    def _path(self, label: str) -> Path:
        return self.base / f"llmgw.{self.mark}.{quote(label, safe='@-')}"

    def _own(self) -> Iterator[tuple[Path, str]]:
        prefix = f"llmgw.{self.mark}."
        with contextlib.suppress(OSError):
            for path in sorted(self.base.iterdir()):
                if path.name.startswith(prefix):
                    yield path, unquote(path.name.removeprefix(prefix))


def here(mark: str, *, mounts: tuple[Path, ...] = MOUNTS, proc: Path = PROC) -> Cgroups | None:
    """Where this process may make cgroups; None where it may not, or where there is no cgroup v2.

    Beside its own one where the memory controller is on for the children there, for its counts; else below its own.
    """
    mount = next((each for each in mounts if (each / "cgroup.controllers").is_file()), None)
    own = None if mount is None else _of(proc / "self", mount)
    if mount is None or own is None:
        return None
    if own != mount and _delegated(own.parent) and "memory" in _words(own.parent / "cgroup.subtree_control"):
        return Cgroups(own.parent, mark)
    return Cgroups(own, mark) if _delegated(own) else None


def entering(path: str, argv: Sequence[str], search: str | None) -> list[str]:
    """A command that enters the cgroup and then becomes `argv`, with the same pid: no child of it can be outside.

    It goes on outside where it may not enter. Raises FileNotFoundError when there is no such program, as exec would.
    """
    if shutil.which(argv[0], path=search) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    return ["/bin/sh", "-c", _ENTER, "sh", f"{path}/cgroup.procs", *argv]


def pids(path: Path) -> set[int]:
    """Of the cgroup and of those below it."""
    folders = [path, *(each for each in path.glob("**/") if each != path)]
    found = {int(word) for folder in folders for word in _words(folder / "cgroup.procs") if word.isdecimal()}
    return found - {
        0
    }  # so is called what is not of this process's world; as a target of signals it means another thing


def kill(path: Path) -> None:
    """SIGKILL to all of it, whatever it forks meanwhile (Linux 5.14; before that, signals have to do)."""
    with contextlib.suppress(OSError):
        if (path / "cgroup.kill").exists():
            (path / "cgroup.kill").write_text("1", encoding="ascii")


def oom_kills(path: Path) -> int:
    """How many of it the kernel's OOM killer took; 0 as well where that is not counted."""
    words = _words(path / "memory.events")
    counts = dict(zip(words[::2], words[1::2], strict=False))
    return int(counts.get("oom_kill", "0"))


def remove(path: Path) -> None:
    """Where nothing is left in it."""
    with contextlib.suppress(OSError):
        for each in sorted(path.glob("**/"), key=lambda folder: len(folder.parts), reverse=True):
            each.rmdir()


def _of(process: Path, mount: Path) -> Path | None:
    """Its cgroup v2, from the line `0::/path`."""
    try:
        lines = (process / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    path = next((line[3:] for line in lines if line.startswith("0::/")), None)
    return None if path is None or ".." in path else mount / path.lstrip("/")


def _delegated(path: Path) -> bool:
    if not os.access(path, os.W_OK | os.X_OK) or not os.access(path / "cgroup.procs", os.W_OK):
        return False
    return os.geteuid() != 0 or any(_xattr(path, name) == b"1" for name in _DELEGATED)


def _xattr(path: Path, name: str) -> bytes:
    try:
        return os.getxattr(path, name)
    except OSError:
        return b""


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []
