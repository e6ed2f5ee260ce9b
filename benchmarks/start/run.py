"""From `POST /api/v1/models/` to the engine's process, on an idle fleet, beside a bare spawn of the same program.

python -m benchmarks.start.run [ROUNDS]
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.harness import ROOT, House, wait_for

ECHO = str(ROOT / "agent_client" / "programs" / "echo_server.py")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as folder:
        house = House(Path(folder))
        try:
            house.up()
            house.agent()
            wait_for(lambda: house.node()["status"] == "ready", "the node")
            ours, bare = [], []
            for i in range(rounds):
                ours.append(post(house, f"m{i}"))
                bare.append(spawn())
        finally:
            house.close()
    for name, took in (("POST to engine process", ours), ("bare spawn", bare)):
        print(f"{name:24} median {statistics.median(took) * 1000:7.1f} ms   max {max(took) * 1000:7.1f} ms")
    print(f"ratio of medians         {statistics.median(ours) / statistics.median(bare):.1f}")


def post(house: House, name: str) -> float:
    before = set(house.engine_pids())
    began = time.perf_counter()
    house.api("models/", {"name": name, "profile": {"engine": "echo", "gpus": 0}})
    while not set(house.engine_pids()) - before:
        time.sleep(0.002)
    return time.perf_counter() - began


def spawn() -> float:
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, ECHO, "--port", "0"], stderr=subprocess.DEVNULL)
    while not os.path.exists(f"/proc/{process.pid}/cmdline"):
        time.sleep(0.002)
    took = time.perf_counter() - began
    process.kill()
    process.wait()
    return took


if __name__ == "__main__":
    main()
