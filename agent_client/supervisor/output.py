"""An engine's output: a file that it writes by itself and that stays within bounds while an agent is there.

The engine holds the file (O_APPEND), so no pipe ties it to the agent and no agent's death blocks it. The middle of the
file is punched out in place: nothing is copied, no byte is lost between a copy and a cut, the beginning stays, and an
offset means the same for ever. Where the file system can't (old NFS), the last part is copied aside and the file cut.
"""

import ctypes
import errno
import os
from pathlib import Path

from agent_client.supervisor.evidence import LINE_LONGEST, rotated

HEAD_KEPT = 65_536  # the first lines name versions and arguments
BLOCK = 4096
READ_MOST = 256 * 1024  # of one look: what a flood writes beyond is passed over and counted
KEEP_SIZE_AND_PUNCH_HOLE = 0x01 | 0x02  # linux/falloc.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def bound(path: Path, longest: int) -> bool:
    """Give back what lies between the beginning and the last `longest` bytes; whether there was any. Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        info = os.fstat(handle)
        if info.st_blocks * 512 <= longest + HEAD_KEPT:
            return False
        end = (info.st_size - longest // 2) // BLOCK * BLOCK  # half: so that it is not done at every look
        if end > HEAD_KEPT and _libc.fallocate(handle, KEEP_SIZE_AND_PUNCH_HOLE, HEAD_KEPT, end - HEAD_KEPT) == 0:
            return True
        if ctypes.get_errno() in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            _cut(path, longest // 2)
            return True
        return False
    finally:
        os.close(handle)


def _cut(path: Path, longest: int) -> None:
    with path.open("rb") as source, rotated(path).open("wb") as target:
        source.seek(max(0, path.stat().st_size - longest))
        while block := source.read(READ_MOST):
            target.write(block)
    os.truncate(path, 0)


class Follower:
    """New whole lines of a growing file; bounded in time and memory whatever is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self.dropped_bytes = 0

    def lines(self) -> list[str]:
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self._offset:  # it was cut
                    self._offset, self._rest = 0, b""
                if size - self._offset > READ_MOST:
                    self.dropped_bytes += size - READ_MOST - self._offset
                    self._offset, self._rest = size - READ_MOST, b""
                file.seek(self._offset)
                data = file.read(READ_MOST)
        except OSError:
            return []
        self._offset += len(data)
        whole = self._rest + data.replace(b"\r", b"\n")
        *lines, self._rest = whole.split(b"\n")
        self._rest = self._rest[:LINE_LONGEST]
        return [line[:LINE_LONGEST].decode("utf-8", errors="replace") for line in lines if line]
