"""From a replica's state in the database to the router's table, and from an engine's death.

python -m benchmarks.table.run [ROUNDS]

Routable is when a request is answered, unroutable when the router's own list of models says so, which asks no engine.
The reference is the router's answer to one request, measured in the same run: nothing can be seen faster.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import tempfile
import time
import urllib.error
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.e2e.harness import House, wait_for


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table.run", description=__doc__.split("\n")[0])
    parser.add_argument("rounds", type=int, nargs="?", default=10)
    return parser


def main() -> None:
    rounds = parser().parse_args().rounds
    took: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        house = House(Path(folder))
        try:
            house.up()
            house.agent()
            wait_for(lambda: house.node()["status"] == "ready", "the node")
            for number in range(rounds):
                stopped(house, f"stopped{number}", took)
                killed(house, f"killed{number}", took)
        finally:
            house.close()
    for name, seconds in took.items():
        print(f"{name:34} median {statistics.median(seconds) * 1e3:6.1f} ms   max {max(seconds) * 1e3:6.1f} ms")


def begun(house: House, name: str, took: dict[str, list[float]]) -> dict[str, Any]:
    """A replica that the router serves."""
    house.api("models/", {"name": name, "profile": {"engine": "echo", "gpus": 0}})
    until(lambda: answers(house, name))
    seen = time.time()
    found = replica(house, name)
    took["ready → routable"].append(seen - datetime.fromisoformat(found["state_at"]).timestamp())
    began = time.perf_counter()
    assert listed(house, name)
    took["  one look at the router's list"].append(time.perf_counter() - began)
    return found


def stopped(house: House, name: str, took: dict[str, list[float]]) -> None:
    found = begun(house, name, took)
    began = time.perf_counter()
    house.api(f"replicas/{found['uid']}/stop/", {})
    took["  of it until the API has answered"].append(time.perf_counter() - began)
    until(lambda: not listed(house, name))
    took["stop asked by API → unroutable"].append(time.perf_counter() - began)


def killed(house: House, name: str, took: dict[str, list[float]]) -> None:
    found = begun(house, name, took)
    pids = next(shard["pids"] for shard in found["shards"])
    began = time.perf_counter()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not listed(house, name))
    took["engine killed → unroutable"].append(time.perf_counter() - began)
    house.api(f"models/{name}/", method="DELETE")


def until(check: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def replica(house: House, name: str) -> dict[str, Any]:
    return next(dict(row) for row in house.api("replicas/?limit=200")["results"] if row["model"] == name)


def listed(house: House, name: str) -> bool:
    """Whether the router's table has a replica of it that may get requests."""
    with house.request(house.router_port, "/v1/models") as answer:
        return any(row["id"] == name and row["state"] == "ready" for row in json.loads(answer.read())["data"])


def answers(house: House, name: str) -> bool:
    try:
        return house.chat(name, "x") == "x"
    except urllib.error.HTTPError:
        return False


if __name__ == "__main__":
    main()
