"""A disk of 1 MB that can really be full: a mount in a namespace of its own, which ends with the program."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

#: Mounting needs a namespace of one's own, where one is root.
NAMESPACE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]


def mounting(folder: Path, then: str) -> list[str]:
    """The command that runs `then`, for which a small disk is mounted at the folder."""
    mount = f"mount -t tmpfs -o size=1m,mode=700 tmpfs {shlex.quote(str(folder))}"
    return [*NAMESPACE, "sh", "-c", f"{mount} && exec {then}"]


def small_disk(folder: Path) -> Path:
    """The folder, where a disk can be mounted. A machine that permits none is told of; in CI it is a failure."""
    folder.mkdir()
    try:
        tried = subprocess.run(mounting(folder, "true"), capture_output=True, text=True)
        trouble = tried.stderr.strip() if tried.returncode else ""
    except FileNotFoundError as error:
        trouble = str(error)
    if trouble:
        told = f"cannot mount a disk of 1 MB here: {trouble}; run as root, or permit user namespaces"
        pytest.fail(told) if os.environ.get("CI") else pytest.skip(told)
    return folder
