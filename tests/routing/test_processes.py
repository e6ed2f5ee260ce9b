"""Several router processes beside each other: counts that they share, renewal without a gap, ends without a loss."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.dataplane import choice
from routing.dataplane.choice import Chooser
from routing.dataplane.messages import Head, Request
from routing.dataplane.meters import Meter
from routing.domain.limits import Limits
from routing.grid import COLUMNS, Grid, GridError
from routing.table import Endpoint, parse
from tests.e2e.harness import PATIENCE, ROOT, wait_for
from tests.routing.test_router import Run, chat
from tests.support.examples import examples

# -- the grid ---------------------------------------------------------------------------------------------------------

CHILD = "import sys, time; from pathlib import Path; from routing.grid import Grid; g = Grid(Path({path!r})); "
CHILD += "row = g.rows(['r'])['r']\n"


class Other:
    """Another process with the same grid."""

    def __init__(self, path: Path, code: str) -> None:
        text = CHILD.format(path=str(path)) + code + "\nprint('up', g.column, flush=True); time.sleep(600)"
        self.process = subprocess.Popen([sys.executable, "-c", text], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.column = int(self.process.stdout.readline().split()[1])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()


def test_what_a_dead_process_had_under_way_is_cleared_and_what_it_used_stays(tmp_path: Path) -> None:
    path = tmp_path / "grid"
    grid = Grid(path)
    row = grid.rows(["r"])["r"]
    grid.words[grid.cell(row)] += 1
    other = Other(path, "g.words[g.cell(row)] = 5; g.words[g.cell(row) + 7] = 9")
    assert other.column != grid.column
    assert (grid.total(row, 0), grid.total(row, 7)) == (6, 9)
    other.kill()
    again = Other(path, "")
    assert again.column == other.column
    assert (grid.total(row, 0), grid.total(row, 7)) == (1, 9)
    again.kill()


def test_names_have_the_same_rows_in_each_process_and_other_names_other_rows(tmp_path: Path) -> None:
    names = [f"key:{number}" for number in range(500)]
    rows = Grid(tmp_path / "grid").rows(names)
    assert len(set(rows.values())) == 500
    assert Grid(tmp_path / "grid").rows(reversed(names)) == rows  # locks are a process's: this one takes its own again


def test_a_month_goes_on_after_a_restart_and_counts_what_the_database_knew(tmp_path: Path) -> None:
    now = 1_800_000_000.0
    limits = Limits(tokens_per_month=100)

    def meter(known: int) -> Meter:
        grid = Grid(tmp_path / "grid")
        made = Meter(grid, grid.rows(["key:1"])["key:1"])
        made.update(limits, known, now)
        return made

    first = meter(0)
    assert first.admit(0, now) is None
    first.settle(0, 60, now)
    assert meter(0).admit(0, now) is None
    assert meter(120).admit(0, now) is not None  # another machine's router served the rest
    second = meter(0)
    second.settle(0, 40, now)
    assert second.admit(0, now) is not None
    assert second.admit(0, now + 40 * 86_400) is None  # another month


ALONE = Grid()
SOME = st.none() | st.integers(0, 12)


@settings(max_examples=examples(200), deadline=None)
@given(
    limits=st.builds(Limits, requests_per_minute=SOME, tokens_per_minute=SOME, concurrency=SOME, tokens_per_month=SOME),
    cells=st.lists(st.tuples(*[st.integers(0, 9)] * 5, st.integers(-3, 1)), min_size=1, max_size=3),
    second=st.floats(0, 59.9),
    tokens=st.integers(0, 9),
)
def test_the_quick_look_at_limits_says_nothing_that_the_close_one_denies(
    limits: Limits, cells: list[tuple[int, ...]], second: float, tokens: int
) -> None:
    grid = ALONE
    grid.words[1] = len(cells)
    row = grid.rows(["key:quick"])["key:quick"]
    now = 60.0 * 29_000_000 + second
    for cell, (at_once, requests, before, used, used_before, minute) in zip(grid.cells(row), cells, strict=True):
        words = (at_once, 0, 29_000_000 + minute, requests, before, used, used_before, 0)
        for field, word in enumerate(words):
            grid.words[cell + field] = word
    meter = Meter(grid, row)
    meter.update(limits, 0, now)
    if meter._far(tokens, now):
        assert meter._exceeded(tokens, now) is None


def test_more_processes_than_columns_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Grid, "_lock", lambda self, number, wait=True: number == COLUMNS)
    with pytest.raises(GridError):
        Grid(tmp_path / "grid")


# -- ejections --------------------------------------------------------------------------------------------------------


class Two:
    """Two processes' choosers over one grid: a lock is a process's, so the second one's column is given to it here."""

    def __init__(self, path: Path) -> None:
        endpoints = [{"id": f"e{number}", "url": f"http://127.0.0.1:{number + 1}"} for number in range(2)]
        self.table = parse({"version": 1, "models": [{"name": "m", "endpoints": endpoints}]})
        self.route = self.table.routes["m"]
        self.choosers = []
        for column in range(2):
            grid = Grid(path)
            grid.column = column
            grid.words[1] = 2
            self.choosers.append(Chooser(grid, lambda *_: None))
        for chooser in self.choosers:
            chooser.update(self.table)

    def chosen(self, number: int) -> set[str]:
        chooser, request = self.choosers[number], Request(Head("POST", "/v1/x", b"", [], {}, True), 0.0)
        return {found.id for _ in range(20) if (found := self.begun(chooser, chooser.choose(self.route, request, ())))}

    def begun(self, chooser: Chooser, endpoint: Endpoint | None) -> Endpoint:
        assert endpoint is not None
        chooser.begin(endpoint)  # so that ties go round
        chooser.end(endpoint)
        return endpoint


async def test_what_one_process_leaves_out_the_others_do_too_until_it_is_back(tmp_path: Path) -> None:
    two = Two(tmp_path / "grid")
    first, second = two.choosers
    out = two.route.endpoints[0]
    assert two.chosen(0) == two.chosen(1) == {"e0", "e1"}
    first.failed(two.route, out, "cannot be connected to")
    assert two.chosen(0) == two.chosen(1) == {"e1"}
    assert not second.loads["e0"].health.reason  # it asks no probe of its own
    first.answered(two.route, out, 200)
    assert two.chosen(0) == two.chosen(1) == {"e0", "e1"}
    for chooser, each in zip(two.choosers, two.route.endpoints, strict=True):
        chooser.failed(two.route, each, "cannot be connected to")
    assert two.chosen(0) == two.chosen(1) == {"e0", "e1"}  # all are out, so all count
    first.close()
    assert two.chosen(1) == {"e0"}
    second.close()
    assert two.chosen(0) == {"e0", "e1"}


async def test_the_word_of_a_process_that_is_gone_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = Two(tmp_path / "grid")
    first, _ = two.choosers
    first.failed(two.route, two.route.endpoints[0], "cannot be connected to")
    assert two.chosen(1) == {"e1"}
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 1 + choice.FORGOTTEN_SECONDS - 0.1)
    assert two.chosen(1) == {"e1"}
    monkeypatch.setattr(time, "monotonic", lambda: now + 1 + choice.FORGOTTEN_SECONDS + 0.1)
    assert two.chosen(1) == {"e0", "e1"}
    monkeypatch.undo()
    first.close()


# -- processes --------------------------------------------------------------------------------------------------------


class Parent(Run):
    """`manage.py router --catalog` needs no database; its keys have no limits, so routes are written by the test."""

    def start_parent(self, processes: int) -> subprocess.Popen[bytes]:
        code = f"""
import asyncio, signal
from routing.server.listening import open_listener
from routing.server.parent import ChildSet
async def main():
    listen = "127.0.0.1:{self.port}"
    argv = ["--routes", {str(self.routes)!r}, "--listen", listen, "--usage-dir", {str(self.folder / "usage")!r}]
    argv += ["--shared-dir", {str(self.folder / "router")!r}, "--drain-seconds", "20"]
    listeners = [open_listener(listen) for _ in range({processes})]
    children = ChildSet(argv, {processes}, stop_seconds=30, listeners=listeners)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, children.stop)
    loop.add_signal_handler(signal.SIGHUP, children.renew)
    return await children.run()
asyncio.run(main())
"""
        with (self.folder / "router.log").open("ab") as log:
            parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=log, stdout=log)
        self.processes.append(parent)
        wait_for(lambda: self.get("/readyz"), "the router")
        wait_for(lambda: len(self.children(parent)) == processes, "its processes")
        return parent

    def children(self, parent: subprocess.Popen[bytes]) -> set[int]:
        return {int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()}

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return str(answer.read().decode())


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Parent]:
    run = Parent(tmp_path)
    try:
        yield run
    finally:
        for process in run.processes:
            process.terminate()
        for process in run.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def test_a_limit_holds_over_all_processes_and_metrics_count_them_together(run: Parent) -> None:
    run.keys[0]["limits"] = {"requests_per_minute": 100}  # type: ignore[assignment]
    run.write([run.engine()[0]])
    run.start_parent(3)
    while time.time() % 60 > 45:  # within one minute of the clock, so that the expected number is plain
        time.sleep(0.5)
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: run.status(chat("x"))[0], range(200)))
    served = statuses.count(200)
    assert statuses.count(429) == 200 - served
    assert 95 <= served <= 105

    def counted() -> bool:
        rows = [line for line in run.get("/metrics").splitlines() if "requests_total{model" in line]
        return sum(int(line.rsplit(" ", 1)[1]) for line in rows if 'status="200"' in line) == served

    wait_for(counted, "the metrics of all")
    files = [json.loads(path.read_text())["metrics"] for path in (run.folder / "router").glob("*.json")]
    assert sum(bool(each["counters"]) for each in files) > 1  # more than one served


def test_renewal_fails_no_request_and_cuts_no_stream(run: Parent) -> None:
    run.write([run.engine("--chunk-delay", "0.2")[0], run.engine("--chunk-delay", "0.2")[0]])
    parent = run.start_parent(2)
    before = run.children(parent)
    words = " ".join(f"w{number}" for number in range(15))
    over = False

    def steady() -> list[int]:
        found = []
        while not over:
            found.append(run.status(chat("x"))[0])
        return found

    with ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(lambda: run.ask(chat(words, stream=True)).read()) for _ in range(2)]
        asking = [pool.submit(steady) for _ in range(2)]
        wait_for(lambda: "in_flight" in run.get("/metrics"), "the streams")
        os.kill(parent.pid, signal.SIGHUP)
        wait_for(lambda: not before & run.children(parent), "the old ones' end")
        over = True
        assert all(b"[DONE]" in stream.result() for stream in streams)
        assert {status for each in asking for status in each.result()} == {200}
    assert len(run.children(parent)) == 2


def test_stopping_ends_what_was_begun_and_takes_nothing_new(run: Parent) -> None:
    run.write([run.engine("--chunk-delay", "0.1")[0]])
    parent = run.start_parent(1)
    with ThreadPoolExecutor(1) as pool:
        answer = run.ask(chat(" ".join("abcdefghij"), stream=True))
        stream = pool.submit(answer.read)
        os.kill(parent.pid, signal.SIGTERM)
        assert b"[DONE]" in stream.result()
    assert parent.wait(20) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", run.port)) != 0
    assert [row["completed"] for row in run.usage()] == [True]


# -- an engine's sudden end -------------------------------------------------------------------------------------------


def test_f44_an_engine_killed_under_load_fails_no_request_that_had_no_byte(run: Parent) -> None:
    """64 at once over two replicas; the dead one is out within 200 ms, and a second attempt takes no second more
    (failures 42)."""
    (first, process), (second, _) = (run.engine("--first-byte-delay", "0.05") for _ in range(2))
    run.write([first, second])
    run.start_parent(2)
    body = json.dumps(chat("x")).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {run.key}\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def client(until: float, answers: list[tuple[float, float, int]]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", run.port)
        while time.monotonic() < until:
            asked_at = time.monotonic()
            writer.write(request)
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            lines = answer.lower().split(b"\r\n")
            length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
            await reader.readexactly(length)
            answers.append((asked_at, time.monotonic(), int(answer.split()[1])))
        writer.close()

    async def load() -> tuple[list[tuple[float, float, int]], float]:
        answers: list[tuple[float, float, int]] = []
        end = time.monotonic() + 3
        clients = [asyncio.ensure_future(client(end, answers)) for _ in range(64)]
        await asyncio.sleep(1)
        killed_at = time.monotonic()
        process.kill()
        process.wait()
        await asyncio.sleep(0.2)
        heir = await asyncio.start_server(listen, "127.0.0.1", first)  # whatever still comes to the dead one's port
        await asyncio.gather(*clients)
        heir.close()
        return answers, killed_at

    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(14))
        writer.transport.abort()

    answers, killed_at = asyncio.run(load())
    assert {status for _, _, status in answers} == {200}
    assert len(answers) > 200
    calm = sorted(said - asked for asked, said, _ in answers if said < killed_at)
    hit = sorted(said - asked for asked, said, _ in answers if asked < killed_at + 0.2 and said > killed_at)
    assert len(hit) >= 64
    assert hit[int(len(hit) * 0.99)] < calm[int(len(calm) * 0.99)] + 1.0 * PATIENCE
    assert {each for each in heard if each} <= {b"GET /health HT"}
    wait_for(lambda: len(run.usage()) >= len(answers), "all usage")
    assert len({row["uid"] for row in run.usage()}) == len(answers)
