"""The database and the broker go away and come back under traffic: no request fails, the fleet converges by itself."""

import os
import threading
import time

import pytest

from tests.e2e.harness import House, content, wait_for
from tests.support.postgres import PrivatePostgres, bin_folder

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.e2e,
    pytest.mark.timeout(180),
    pytest.mark.skipif(bin_folder() is None and not os.environ.get("CI"), reason="PostgreSQL is not installed"),
]

ECHO = {"name": "one", "profile": {"engine": "echo", "gpus": 0}}


@pytest.fixture
def house(house_on_postgres: House) -> House:
    return house_on_postgres


class Traffic:
    """Clients that ask without a pause, one streamed and one whole; each answer is checked."""

    def __init__(self, house: House) -> None:
        self.house, self.over, self.answers, self.failures = house, threading.Event(), 0, list[str]()
        self.threads = [threading.Thread(target=self._run, args=(ask,)) for ask in (self._whole, self._streamed)]

    def __enter__(self) -> "Traffic":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def _run(self, ask: object) -> None:
        while not self.over.is_set():
            try:
                answer = ask("a b c d e")  # type: ignore[operator]
                if answer != "a b c d e":
                    self.failures.append(f"wrong answer {answer!r}")
            except (OSError, ValueError) as error:
                self.failures.append(repr(error))
            self.answers += 1

    def _whole(self, words: str) -> str:
        return self.house.chat("one", words)

    def _streamed(self, words: str) -> str:
        with self.house.stream("one", words) as answer:
            return "".join(filter(None, map(content, answer)))


def test_broker_and_database_restart_under_traffic(house: House, database: PrivatePostgres) -> None:
    house.agent()
    house.api("models/", ECHO)
    wait_for(lambda: house.replica()["state"] == "ready", "the replica")
    wait_for(lambda: house.chat("one", "x") == "x", "the route")
    (pid,) = house.engine_pids()
    attempt = house.replica()["attempt"]
    with Traffic(house) as traffic:
        house.kill("bus")
        time.sleep(2)
        (house.folder / "bus.sock").unlink(missing_ok=True)
        house.bus()
        database.stop()
        time.sleep(8)  # longer than these tests' "lost": but it is the control plane that was deaf
        database.start()
        wait_for(lambda: house.node()["status"] == "ready" and house.node()["connected"], "the node", 60)
        house.api("models/", {**ECHO, "name": "two"})
        wait_for(lambda: {r["state"] for r in house.api("replicas/")["results"]} == {"ready"}, "both replicas", 60)
        wait_for(lambda: house.chat("two", "all well") == "all well", "the second model's route")
    assert traffic.failures == []
    assert traffic.answers > 10
    assert pid in house.engine_pids()  # the same engine, never restarted
    assert {(r["model"], r["attempt"]) for r in house.api("replicas/")["results"]} == {("one", attempt), ("two", 1)}
    assert {name for name, process in house.processes.items() if process.poll() is not None} == set()
