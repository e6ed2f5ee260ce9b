"""One router under test: running it before an engine of its own, and the figures that are taken of it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.router import processes, programs
from benchmarks.router.peers import Absent, Command, Place
from benchmarks.router.programs import Engine, load, nothing, pinned
from routing.keys import new_key
from tests.e2e.harness import ROOT
from tests.support.ports import free_port

CONNECTIONS = 64
STREAMS = 512
GAP_US = 20_000  # 50 chunks/s
HELD_STREAMS = 1000
HELD_GAP_US = 200_000
QUIET_GAP_US = 600_000_000
START_SECONDS = 60.0
CALM = 0.05  # of a window
ASK = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all routers share: programs, cores, the length of a window."""

    engine: Path
    load: Path
    router_core: Collection[int]
    load_core: Collection[int]
    cache: Path
    key: str
    seconds: float
    quick: bool

    @classmethod
    def here(cls, *, seconds: float, quick: bool) -> "Bench":
        """On the last two of this machine's cores. Ends the program with a sentence where that can't be."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2 or not programs.available():
            sys.exit("cannot measure: two cores and gcc are needed, one core for the router and one for all the rest")
        cache = ROOT / "var" / "benchmarks"
        engine, load = programs.build(cache / "programs")
        return cls(
            engine=engine,
            load=load,
            router_core={cores[-2]},
            load_core={cores[-1]},
            cache=cache,
            key=new_key()[0],
            quick=quick,
            seconds=seconds,
        )


@dataclass
class Router:
    """A running router, or the engine itself where `process` is None."""

    name: str
    bench: Bench
    engine: Engine
    port: int
    process: subprocess.Popen[bytes] | None = None
    rounds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # a figure's values, by round
    trouble: list[str] = field(default_factory=list)

    def value(self, figure: str) -> float | None:
        return median(self.rounds[figure]) if self.rounds[figure] else None

    def pids(self) -> list[int]:
        return processes.tree(self.process.pid) if self.process else []

    # -- loads --------------------------------------------------------------------------------------------------------

    def closed(self) -> None:
        """Requests one after the other on each of 64 connections."""
        found = self._undisturbed("closed", CONNECTIONS, self.bench.seconds)
        self._note("requests_per_second", found["requests"] / found["seconds"])
        self._note("cpu_us_per_request", found["cpu_seconds"] / found["requests"] * 1e6)
        self._complain("closed", found["errors"])

    def streams(self) -> None:
        """512 streams of 50 chunks/s, and beside them a prober whose first byte is timed."""
        found = self._undisturbed("streams", STREAMS, self.bench.seconds, GAP_US)
        self._note("cpu_us_per_chunk", found["cpu_seconds"] / found["chunks"] * 1e6)
        self._note("chunks_per_read", found["chunks"] / found["reads"])
        self._note("first_p50_us", found["first_p50_us"])
        self._note("first_p99_us", found["first_p99_us"])
        self._complain("streams", found["errors"] + STREAMS - found["streams"])

    def memory(self) -> None:
        """With 1,000 streams open: the whole tree, and the largest of its processes."""
        shares: list[float] = []
        hold = lambda: shares.extend(processes.mib(pid) for pid in self.pids())  # noqa: E731
        found = self._load("streams", HELD_STREAMS, 1.0, HELD_GAP_US, at_end=hold)
        if shares:
            self._note("mib", sum(shares))
            self._note("mib_largest", max(shares))
        self._complain("memory", found["errors"] + HELD_STREAMS - found["streams"])

    def stall(self) -> None:
        """How far ahead the engine gets of a client that stopped reading."""
        self._note("ahead_mb", self._load("stall", self.engine.port, 2.0)["ahead_bytes"] / 1e6)

    def leave(self, times: int) -> None:
        """How long after a client closed a quiet stream the engine sees it."""
        found = self._load("leave", self.engine.port, times, QUIET_GAP_US)
        if found["missed"] < found["times"]:
            self._note("leave_p50_ms", found["p50_us"] / 1000)
            self._note("leave_max_ms", found["max_us"] / 1000)
        self._note("leave_missed", found["missed"])

    def _undisturbed(self, mode: str, *args: object) -> dict[str, Any]:
        """The calmest of up to three tries: a router that waits for its core reads more at once, and looks cheaper."""
        tries = []
        for _ in range(1 if self.bench.quick else 3):
            tries.append(self._load(mode, *args))
            if tries[-1]["waited"] is None or tries[-1]["waited"] < CALM:
                break
        calmest = min(tries, key=lambda found: found["waited"] or 0.0)
        if calmest["waited"] is not None:  # where the kernel does not tell, the table's column stays empty
            self._note("waited", calmest["waited"])
        return calmest

    def _load(self, mode: str, *args: object, at_end: Callable[[], None] = nothing) -> dict[str, Any]:
        """The load's figures; with them the CPU seconds and the share of time waited for the core, in its window."""
        pids, marks = self.pids(), []

        def mark() -> None:
            marks.append((processes.cpu_seconds(pids), processes.waited_seconds(pids), time.monotonic()))

        def end() -> None:
            mark()
            at_end()

        argv = (self.port, self.bench.key, *args)
        found = load(self.bench.load, self.bench.load_core, mode, *argv, on_begin=mark, on_end=end)
        (cpu, waited, at), (cpu_after, waited_after, at_after) = marks
        known = waited is not None and waited_after is not None
        return {
            **found,
            "cpu_seconds": cpu_after - cpu,
            "waited": (waited_after - waited) / (at_after - at) if known else None,
        }

    def _note(self, figure: str, value: float) -> None:
        self.rounds[figure].append(value)

    def _complain(self, what: str, errors: int) -> None:
        if errors:
            self.trouble.append(f"{self.name}: {errors} errors ({what})")

    # -- begin and end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self.process:
            handles = []  # no number that somebody else may have by then
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    handles.append(os.pidfd_open(pid))
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(3)
            for handle in handles:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                os.close(handle)
            self.process.wait()
        self.engine.close()


def start(name: str, command: Command | None, bench: Bench, folder: Path) -> Router:
    """Before an engine of its own; without a command the engine itself. Raises Absent."""
    engine = Engine(bench.engine, bench.load_core)
    if command is None:
        return Router(name, bench, engine, engine.port)
    place = Place(folder=folder / name, cache=bench.cache, port=free_port(), engine_port=engine.port, key=bench.key)
    place.folder.mkdir()
    try:
        argv = command(place)
        with (place.folder / "log").open("wb") as log:
            process = subprocess.Popen(pinned(bench.router_core, argv), stdout=log, stderr=log, cwd=place.folder)
        router = Router(name, bench, engine, place.port, process)
    except Absent:
        engine.close()
        raise
    try:
        _until_answers(router)
    except Absent:
        router.close()
        raise
    return router


def _until_answers(router: Router) -> None:
    assert router.process is not None
    headers = {"Authorization": f"Bearer {router.bench.key}", "Content-Type": "application/json"}
    url = f"http://127.0.0.1:{router.port}/v1/chat/completions"
    last: object = "nothing listens"
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and router.process.poll() is None:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, ASK, headers), timeout=5):
                return
        except OSError as error:
            last = error
            time.sleep(0.2)
    raise Absent(f"{router.name} is left out: it gives no answer ({last})")


def in_turn(routers: list[Router], number: int) -> list[Router]:
    """In another order each round, so that none is always first."""
    first = number % len(routers)
    return routers[first:] + routers[:first]
