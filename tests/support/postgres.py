"""A private PostgreSQL server for tests that stop and start it; the machine's own one is never touched."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path


def bin_folder() -> Path | None:
    """Where `initdb` and `pg_ctl` are: on PATH, or in Debian's versioned folders; None without PostgreSQL."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return folders[-1].parent if folders else None


class PrivatePostgres:
    """One server in a folder of its own, listening on loopback. It refuses to run as root, so root lends it a user."""

    def __init__(self, port: int, *, connections: int = 100) -> None:
        found = bin_folder()
        assert found is not None, "PostgreSQL is not installed"
        self.bin, self.port, self.connections = found, port, connections
        self.user = "postgres" if os.getuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="llmgw-pg-"))
        if self.user:
            found_user = pwd.getpwnam(self.user)
            os.chown(self.folder, found_user.pw_uid, found_user.pw_gid)
        self._run("initdb", "-D", self.data, "-U", "llmgw", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        self.start()
        self._run("createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "llmgw", "llmgw")

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    @property
    def url(self) -> str:
        return f"postgres://llmgw@127.0.0.1:{self.port}/llmgw"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder} -c fsync=off"
        options += f" -c max_connections={self.connections}"
        self._run("pg_ctl", "-D", self.data, "-w", "-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        """`immediate` is what a crash does: no connection is ended politely."""
        self._run("pg_ctl", "-D", self.data, "-w", "-m", mode, "stop")

    def close(self) -> None:
        if (self.folder / "data" / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [str(self.bin / program), *words],
            user=self.user,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            timeout=60,
        )
        assert done.returncode == 0, f"{program}: {(done.stdout or b'').decode()}"
