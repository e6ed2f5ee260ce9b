"""A router whose state folder has no room: `python -m tests.routing.full_disk FOLDER ROOM`, in a namespace of its own,
with a disk mounted at FOLDER of which ROOM bytes are left. Prints one JSON line of what was seen.
"""

import contextlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from routing.keys import new_key
from tests.e2e.harness import ROOT, wait_for
from tests.support.ports import free_port

REQUESTS_PER_MINUTE = 5


def fill(folder: Path, *, room: int) -> None:
    found = os.statvfs(folder)
    left = found.f_bavail * found.f_frsize - room
    (folder / "filler").write_bytes(b"x" * left)


def ask(port: int, key: str) -> int:
    head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/embeddings", b'{"model":"m"}', head)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def ready(port: int, router: "subprocess.Popen[bytes]") -> bool:
    """Whether it serves, or has ended."""
    with contextlib.suppress(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10).close()
        return True
    return router.poll() is not None


def run(folder: Path, room: int) -> dict[str, Any]:
    key, prefix, sha256 = new_key()
    port = free_port()
    catalog, log = folder.parent / "catalog.yaml", folder.parent / "log"
    keys = [{"name": "k", "prefix": prefix, "sha256": sha256, "requests_per_minute": REQUESTS_PER_MINUTE}]
    models = [{"name": "m", "endpoints": [{"url": "http://127.0.0.1:9"}]}]
    catalog.write_text(yaml.safe_dump({"models": models, "keys": keys}))
    fill(folder, room=room)
    argv = [sys.executable, "manage.py", "router", "--catalog", str(catalog), "--state-dir", str(folder)]
    argv += ["--listen", f"127.0.0.1:{port}", "--processes", "2", "--no-access-log", "--drain-seconds", "1"]
    with log.open("wb") as file:
        router = subprocess.Popen(argv, cwd=ROOT, stdout=file, stderr=file)
    try:
        wait_for(lambda: ready(port, router), "the router, or its end")
        seen: dict[str, Any] = {"ended": router.poll()}
        if seen["ended"] is None:
            seen["statuses"] = Counter(ask(port, key) for _ in range(30))
    finally:
        router.terminate()
        seen_code = router.wait(30)
    return {**seen, "code": seen_code, "log": log.read_text().splitlines()}


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), int(sys.argv[2]))))
