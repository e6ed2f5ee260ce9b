"""A hub on loopback that speaks as much of the model hub's HTTP as its official client asks for."""

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c0ffee" + "0" * 34


class Hub:
    """`files` by name; `large` ones are listed with a SHA-256, as the hub does for what git can't hold."""

    def __init__(self, files: dict[str, bytes], *, repo: str = "org/tiny", large_from: int = 1024) -> None:
        self.files, self.repo, self.large_from = files, repo, large_from
        self.token: str | None = None
        self.gated = False
        self.seconds_per_kib = 0.0
        self.garble: dict[str, int] = {}  # name → how many more times its bytes come out wrong
        self.cut_after: int | None = None  # bytes after which each answer's connection breaks
        self.sent: dict[str, int] = {}  # bytes of bodies sent
        self.gets: list[str] = []
        self.url = ""

    def info(self) -> dict[str, Any]:
        siblings = []
        for name, data in self.files.items():
            row: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": self.etag(name)}
            if len(data) >= self.large_from:
                row["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            siblings.append(row)
        return {"id": self.repo, "modelId": self.repo, "sha": COMMIT, "private": False, "gated": False,
                "disabled": False, "downloads": 0, "likes": 0, "tags": [], "siblings": siblings}  # fmt: skip

    def etag(self, name: str) -> str:
        data = self.files[name]
        if len(data) >= self.large_from:
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextlib.contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def _json(self, status: int, body: Any, **headers: str) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def do_HEAD(self) -> None:
            self._serve()

        def do_GET(self) -> None:
            self._serve()

        def _serve(self) -> None:
            path = self.path.split("?")[0]
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                code = "GatedRepo" if hub.gated else "RepoNotFound"
                return self._json(403 if hub.gated else 401, {"error": "no"}, X_Error_Code=code)
            if match := re.fullmatch(rf"/api/models/{hub.repo}/revision/(.+)", path):
                if match[1] not in ("main", COMMIT):
                    return self._json(404, {"error": "no"}, X_Error_Code="RevisionNotFound")
                return self._json(200, hub.info())
            if match := re.fullmatch(rf"/api/models/{hub.repo}/tree/([^/]+)/?", path):
                rows = []
                for row in hub.info()["siblings"]:
                    tree = {"type": "file", "path": row["rfilename"], "size": row["size"], "oid": row["blobId"]}
                    if "lfs" in row:
                        tree["lfs"] = {"oid": row["lfs"]["sha256"], "size": row["size"], "pointerSize": 134}
                    rows.append(tree)
                return self._json(200, rows)
            match = re.fullmatch(rf"/{hub.repo}/resolve/([^/]+)/(.+)", path)
            if match is None or match[2] not in hub.files:
                return self._json(404, {"error": "no"}, X_Error_Code="EntryNotFound" if match else "RepoNotFound")
            return self._file(match[2])

        def _file(self, name: str) -> None:
            data = hub.files[name]
            begin = 0
            if ranged := re.match(r"bytes=(\d+)-", self.headers.get("Range") or ""):
                begin = int(ranged[1])
            self.send_response(206 if ranged else 200)
            self.send_header("Content-Length", str(len(data) - begin))
            self.send_header("Accept-Ranges", "bytes")
            if ranged:
                self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
            self.send_header("ETag", f'"{hub.etag(name)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command == "HEAD":
                return
            hub.gets.append(name)
            if hub.garble.get(name, 0) > 0:
                hub.garble[name] -= 1
                data = bytes(byte ^ 0xFF for byte in data)
            try:
                for at in range(begin, len(data), 1024):
                    if hub.cut_after is not None and at - begin >= hub.cut_after:
                        self.close_connection = True
                        return
                    self.wfile.write(data[at : at + 1024])
                    hub.sent[name] = hub.sent.get(name, 0) + len(data[at : at + 1024])
                    if hub.seconds_per_kib:
                        time.sleep(hub.seconds_per_kib)
            except OSError:
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
