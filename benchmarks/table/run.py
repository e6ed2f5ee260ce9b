"""From a replica's state in the database to the router's answer: ready to routable, and gone to unroutable.

python -m benchmarks.table.run [ROUNDS]
"""

import statistics
import sys
import tempfile
import time
import urllib.error
from pathlib import Path

from tests.e2e.harness import House, wait_for


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    routable, unroutable, answered = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        house = House(Path(folder))
        try:
            house.up()
            house.agent()
            wait_for(lambda: house.node()["status"] == "ready", "the node")
            for number in range(rounds):
                name = f"m{number}"
                house.api("models/", {"name": name, "profile": {"engine": "echo", "gpus": 0}})
                until(lambda name=name: state(house, name) == "ready")
                began = time.perf_counter()
                until(lambda name=name: answers(house, name))
                routable.append(time.perf_counter() - began)
                uid = next(r["uid"] for r in house.api("replicas/")["results"] if r["model"] == name)
                began = time.perf_counter()
                house.api(f"replicas/{uid}/stop/", {})
                answered.append(time.perf_counter() - began)
                until(lambda name=name: not answers(house, name))
                unroutable.append(time.perf_counter() - began)
        finally:
            house.close()
    shown = (("ready → routable", routable), ("stop → unroutable", unroutable), ("  of it the API's", answered))
    for name, took in shown:
        print(f"{name:18} median {statistics.median(took) * 1e3:6.1f} ms   max {max(took) * 1e3:6.1f} ms")


def until(check: object) -> None:
    deadline = time.monotonic() + 30
    while not check():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.002)


def state(house: House, name: str) -> str:
    return next((r["state"] for r in house.api("replicas/?limit=200")["results"] if r["model"] == name), "")


def answers(house: House, name: str) -> bool:
    try:
        return house.chat(name, "x") == "x"
    except urllib.error.HTTPError:
        return False


if __name__ == "__main__":
    main()
