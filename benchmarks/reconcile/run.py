"""What a tick costs on SQLite and PostgreSQL: 200, 600 and 2,000 nodes of 8 cards, 3 replicas of 4 cards per 2 nodes.

Medians by the clock and, in brackets, of the reconciler's own processor time; growth is that of the last size to the
first. python -m benchmarks.reconcile.run [NODES …]
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from llmgw_site.up.bus import server_argv
from tests.e2e.harness import ROOT, wait_for
from tests.support.ports import free_port
from tests.support.postgres import PrivatePostgres, bin_folder

GOALS = {"idle": 0.5, "hurried": 0.5, "ended": 0.2, "pending": 2.0}
NAMES = {
    "idle": "nothing to do",
    "hurried": "the same, at a ring",
    "ended": "one ended, placed again",
    "pending": "1,000 pending placed",
}


def measure(nodes: int, folder: Path, url: str) -> dict[str, list[float]]:
    """By kind of tick: seconds by the clock, and of the processor."""
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "llmgw_site.settings",
        "LLMGW_STATE_DIR": str(folder),
        "LLMGW_SECRET_KEY": "benchmark-secret-key-0123456789-0123456789-0123456789",
        "LLMGW_REDIS_URL": f"unix://{folder}/bus.sock",
        "LLMGW_LOG_LEVEL": "CRITICAL",
        "DATABASE_URL": url,
    }
    argv = [sys.executable, "-m", "benchmarks.reconcile.fleet", str(nodes), str(nodes * 3 // 2)]
    bus = subprocess.Popen(server_argv(folder / "bus.sock"), stdout=subprocess.DEVNULL)
    try:
        wait_for((folder / "bus.sock").exists, "the bus")
        done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
    finally:
        bus.terminate()
        bus.wait()
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or [200, 600, 2000]
    for database in ("SQLite", "PostgreSQL"):
        if database == "PostgreSQL" and bin_folder() is None:
            print("PostgreSQL: not installed here")
            continue
        rows = {}
        for nodes in sizes:
            with tempfile.TemporaryDirectory() as folder:
                server = PrivatePostgres(free_port()) if database == "PostgreSQL" else None
                try:
                    rows[nodes] = measure(nodes, Path(folder), server.url if server else "")
                finally:
                    if server:
                        server.close()
        print(f"{database:24}" + "".join(f"{nodes:>13} nodes" for nodes in sizes) + "      goal   growth (processor)")
        for key, goal in GOALS.items():
            cells = (
                f"{rows[n][key][0] * 1000:8.0f} ({rows[n][key][1] * 1000:4.0f}) ms" if key in rows[n] else f"{'-':>19}"
                for n in sizes
            )
            ends = [rows[n][key][1] for n in (sizes[0], sizes[-1]) if key in rows[n]]
            growth = f"{ends[1] / ends[0]:8.1f} x" if len(ends) == 2 else ""
            print(f"{NAMES[key]:24}" + "".join(cells) + f"{goal * 1000:7.0f} ms{growth}")
        print()


if __name__ == "__main__":
    main()
