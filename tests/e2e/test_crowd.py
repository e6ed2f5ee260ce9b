"""Many agents, many open streams and a crowd at the API, on few connections to the database: nobody is taken for gone
or turned away, also while the web process is killed and comes back under them."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.e2e.harness import PATIENCE, SECRET, House, content, wait_for
from tests.support.ports import free_port
from tests.support.postgres import PrivatePostgres, bin_folder

pytestmark = [
    pytest.mark.long,
    pytest.mark.e2e,
    pytest.mark.timeout(180),
    pytest.mark.skipif(bin_folder() is None and not os.environ.get("CI"), reason="PostgreSQL is not installed"),
]

#: 500 pass, too: heartbeats lagged 5.6 s at most, on two busy cores.
AGENTS = 200
STREAMS = 200
CLIENTS = 40  # of the API, at once
OF_WEB, OF_ALL = 10, 30  # connections to the database
HEARTBEAT = 5.0  # of 500 agents the control plane would wish no shorter one
WORD_SECONDS = 0.6
WORDS = " ".join(f"w{i}" for i in range(50))
TINY = {"name": "tiny", "profile": {"engine": "vllm", "model": "org/tiny", "gpus": 0, "max_model_len": 2048}}
LAG = "SELECT extract(epoch FROM max(now() - last_seen_at)) FROM fleet_node"
READY = "SELECT count(*) FROM fleet_node WHERE status = 'ready' AND connected"
SESSIONS = "SELECT count(DISTINCT session_id) FROM fleet_node WHERE session_id > {}"
HELD = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'web'"
GONE = "SELECT count(*) FROM fleet_event WHERE kind IN ('node_unreachable', 'node_lost')"


@pytest.fixture
def database() -> Iterator[PrivatePostgres]:
    server = PrivatePostgres(free_port(), connections=OF_ALL)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def house(tmp_path: Path, database: PrivatePostgres) -> Iterator[House]:
    timers = {"FLEET_HEARTBEAT_SECONDS": HEARTBEAT, "FLEET_UNREACHABLE_AFTER_SECONDS": 3 * HEARTBEAT}
    timers |= {"FLEET_LOST_AFTER_SECONDS": 60, "LLMGW_RECONCILE_PERIOD_SECONDS": 5, "LLMGW_WEB_CONNECTIONS": OF_WEB}
    timers |= {"VLLM_STANDIN_CHUNK_DELAY": WORD_SECONDS}
    house = House(tmp_path, DATABASE_URL=database.url, **{name: str(value) for name, value in timers.items()})
    try:
        house.up()
        yield house
    finally:
        house.close()


Ask = Callable[[str], float]


@pytest.fixture
def ask(house: House, database: PrivatePostgres) -> Iterator[Ask]:
    """The one number that a statement gives."""
    with psycopg.connect(database.url, autocommit=True) as connection:

        def ask(text: str) -> float:
            (found,) = connection.execute(text).fetchone() or (0,)
            return float(found)

        yield ask


class Streams:
    """Open answers, each heard to its end."""

    def __init__(self, house: House, count: int) -> None:
        self.house, self.begun = house, threading.Barrier(count + 1)
        self.pool = ThreadPoolExecutor(count)
        self.answers: list[Future[tuple[str, bool]]] = [self.pool.submit(self._hear) for _ in range(count)]
        self.begun.wait(20 * PATIENCE)

    def _hear(self) -> tuple[str, bool]:
        heard, ended = list[str](), False
        with self.house.stream("tiny", WORDS) as answer:
            for line in answer:
                if (word := content(line)) is not None:
                    heard.append(word)
                    if len(heard) == 2:
                        self.begun.wait(20 * PATIENCE)
                ended = ended or line.startswith(b"data: [DONE]")
        return "".join(heard), ended

    @property
    def open(self) -> bool:
        return not any(answer.done() for answer in self.answers)


def test_agents_and_streams_on_ten_connections(house: House, ask: Ask) -> None:
    """Failures 2."""
    house.agent()
    house.api("models/", TINY)
    wait_for(lambda: house.replica()["state"] == "ready", "the replica")
    wait_for(lambda: house.chat("tiny", "hello") == "hello", "the route")
    (pid,) = house.engine_pids()
    argv = [sys.executable, "-m", "tests.support.crowd", f"ws://127.0.0.1:{house.web_port}", str(AGENTS)]
    house.start("crowd", argv, LLMGW_AGENT_JOIN_SECRET=SECRET)
    wait_for(lambda: ask(READY) == AGENTS + 1, "all agents", 60)
    streams = Streams(house, STREAMS)

    lags, held = list[float](), list[float]()
    crowd = ThreadPoolExecutor(CLIENTS)
    pages = [crowd.submit(house.api, "nodes/?limit=20") for _ in range(5 * CLIENTS)]
    until = time.monotonic() + 2 * HEARTBEAT
    while time.monotonic() < until:
        lags.append(ask(LAG))
        held.append(ask(HELD))
        time.sleep(0.1)
    assert all(page.result()["results"] for page in pages)
    assert max(held) <= OF_WEB
    assert max(lags) < 2 * HEARTBEAT * PATIENCE
    assert ask(GONE) == 0

    newest = int(ask("SELECT max(session_id) FROM fleet_node"))
    house.kill("web")
    time.sleep(1)
    house.web()
    house.wait_for_web()
    assert streams.open
    wait_for(lambda: ask(SESSIONS.format(newest)) == AGENTS + 1, "all agents again", 60)
    assert [answer.result() for answer in streams.answers] == [(WORDS, True)] * STREAMS
    assert ask(READY) == AGENTS + 1
    assert ask(GONE) == 0
    assert ask(LAG) < 2 * HEARTBEAT * PATIENCE
    assert ask(HELD) <= OF_WEB
    for log, word in (("crowd", "link.refused"), ("web", "agent.refused"), ("web", "agent.unavailable")):
        assert word not in (house.folder / f"{log}.log").read_text()
    assert house.engine_pids() == [pid]
    assert house.replica()["attempt"] == 1
