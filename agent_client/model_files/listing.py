"""Which files a model has, with what tells that one has changed."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

#: Size and time of change; None for a link to nothing.
Listed = tuple[int, int] | None

MOST_FILES = 20_000
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\.[a-z]+)\Z")


def list_files(path: Path) -> Mapping[str, Listed]:
    """Of a folder: everything but hidden folders, by the name inside it. Of a file: it and its other parts.

    Raises OSError; also for a path that is no file and no folder.
    """
    if not stat.S_ISDIR(path.stat().st_mode):
        group = (path.name, *parts(path.name))
        return {name: _listed(path.with_name(name)) for name in group if os.path.lexists(path.with_name(name))}
    out: dict[str, Listed] = {}
    for root, folders, names in os.walk(path, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            whole = Path(root, name)
            out[str(whole.relative_to(path))] = _listed(whole)
            if len(out) >= MOST_FILES:
                return out
    return out


def parts(name: str) -> tuple[str, ...]:
    """`model-00002-of-00003.gguf` → the names of all three; () for a name of another form."""
    found = _SPLIT.match(name)
    if found is None or not 1 <= int(found["count"]) <= MOST_FILES:
        return ()
    count = int(found["count"])
    return tuple(f"{found['stem']}-{n:05d}-of-{count:05d}{found['end']}" for n in range(1, count + 1))


def _listed(path: Path) -> Listed:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _raise(error: OSError) -> None:
    raise error
