"""The machines' kernels: processes with marks, cards that they hold, signals, and who may reach them at which port."""

import contextlib
import os
import random
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_client.supervisor import processes
from tests.simulate.loop import PROCESS, VirtualLoop


@dataclass(slots=True, kw_only=True)
class EngineProcess:
    pid: int
    node: str
    mark: str
    label: str  # "uid/rank@epoch"
    gpus: tuple[str, ...]
    port: int
    started: int
    revision: int  # of its model, as its environment says
    ready_at: float
    deaf: bool = False  # TERM changes nothing
    stuck_until: float = 0.0  # KILL neither, until then
    told: bool = False  # to end
    requests: int = 0  # in it
    code: int | None = None  # exit code, negative for a signal; None while it lives
    handles: list[int] = field(default_factory=list)

    @property
    def shard(self) -> str:
        return self.label.partition("@")[0]

    @property
    def epoch(self) -> int:
        return int(self.label.partition("@")[2] or 0)


#: Within so long after an engine could answer somebody has asked it.
PROVED_SECONDS = 3.0


class Broken(AssertionError):
    """A promise was broken."""


class Kernel:
    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self._loop, self._chance = loop, chance
        self.processes: dict[int, EngineProcess] = {}
        self._pid = 100
        self._port = 20_000
        self.load_seconds = (0.5, 6.0)
        self.crash_share = 0.0  # of engines that end while they load
        self.deaf_share = 0.0
        self.stuck_share = 0.0
        self.broken: list[str] = []  # promises, in words; raised by the judge, whom no agent's task can silence
        self.ended: list[EngineProcess] = []  # healthy ones that were told to end, for the judge
        self.doubled: list[tuple[EngineProcess, EngineProcess]] = []  # started while the shard lived on another node

    # -- what the agent's code calls instead of the real thing -------------------------------------------------------

    def popen(self, argv: Any, *, env: Mapping[str, str], **_: Any) -> "Child":
        process = PROCESS.get()
        assert process is not None
        self._pid += 1
        words = list(argv)
        engine = EngineProcess(
            pid=self._pid,
            node=process.node.name,
            mark=env[processes.STATE_VARIABLE],
            label=env[processes.SHARD_VARIABLE],
            gpus=tuple(uuid for uuid in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if uuid),
            port=int(words[words.index("--port") + 1]),
            started=self._pid,
            revision=int(env["REVISION"]),
            ready_at=self._loop.time() + self._chance.uniform(*self.load_seconds),
            deaf=self._chance.random() < self.deaf_share,
        )
        if self._chance.random() < self.stuck_share:
            engine.stuck_until = self._loop.time() + 40
        self._judge_start(engine)
        self.processes[engine.pid] = engine
        if self._chance.random() < self.crash_share:
            self._loop.from_outside(self._loop.time() + self._chance.uniform(0.1, 4.0), self.exit, engine, 1)
        return Child(self, engine)

    def start_time(self, pid: int) -> int | None:
        engine = self.processes.get(pid)
        return engine.started if engine and engine.code is None else None

    def variable(self, pid: int, name: str) -> str:
        """Of its environment, what the agent asks for: the port."""
        engine = self.processes.get(pid)
        return str(engine.port) if engine is not None and name == processes.PORT_VARIABLE else ""

    def marked(self, mark: str) -> dict[int, str]:
        return {e.pid: e.label for e in self.processes.values() if e.mark == mark and e.code is None}

    def signal_all(self, pids: Iterable[int], number: signal.Signals) -> None:
        for pid in list(pids):
            self._signal(pid, number)

    def signal_group(self, pid: int, started: int, number: signal.Signals) -> None:
        if self.start_time(pid) == started:
            self._signal(pid, number)

    def pidfd_open(self, pid: int) -> int:
        engine = self.processes.get(pid)
        if engine is None or engine.code is not None:
            raise ProcessLookupError(3, "No such process")
        handle = os.eventfd(0)
        engine.handles.append(handle)
        return handle

    def free_ports(self, taken: Any, count: int = 1) -> range:
        self._port += count
        return range(self._port - count + 1, self._port + 1)

    def close(self) -> None:
        """Give back what agents that were killed could not close; the numbers others closed may be anything now."""
        for handle in {each for engine in self.processes.values() for each in engine.handles}:
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{handle}") == "anon_inode:[eventfd]":
                    os.close(handle)

    # -- the world's own hand ----------------------------------------------------------------------------------------

    def alive(self, node: str | None = None) -> list[EngineProcess]:
        return [e for e in self.processes.values() if e.code is None and node in (None, e.node)]

    def at(self, port: int) -> EngineProcess | None:
        return next((e for e in self.alive() if e.port == port), None)

    def healthy(self, engine: EngineProcess) -> bool:
        return engine.code is None and self._loop.time() >= engine.ready_at

    def exit(self, engine: EngineProcess, code: int) -> None:
        if engine.code is None:
            engine.code = code
            for handle in engine.handles:
                self._loop.readable(handle)

    def _signal(self, pid: int, number: signal.Signals) -> None:
        engine = self.processes.get(pid)
        if engine is None or engine.code is not None:
            return
        if engine.code is None and self._loop.time() >= engine.ready_at + PROVED_SECONDS and not engine.told:
            self.ended.append(engine)
        engine.told = True  # what becomes healthy after that was given up for good reason
        if number == signal.SIGKILL:
            wait = max(0.02, engine.stuck_until - self._loop.time())
            self._loop.from_outside(self._loop.time() + wait, self.exit, engine, -9)
        elif not engine.deaf and engine.stuck_until < self._loop.time():
            self._loop.from_outside(self._loop.time() + self._chance.uniform(0.05, 1.5), self.exit, engine, 0)

    def _judge_start(self, engine: EngineProcess) -> None:
        for other in self.alive():
            if other.node != engine.node:
                if other.shard == engine.shard:
                    self.doubled.append((engine, other))
                continue
            if set(other.gpus) & set(engine.gpus):
                self.broken.append(f"{engine.node}: {engine.label} was started on a card that {other.label} holds")
            if other.shard == engine.shard:
                self.broken.append(f"{engine.node}: {engine.label} was started while {other.label} lives")


class Child:
    """What subprocess.Popen gives."""

    def __init__(self, kernel: Kernel, engine: EngineProcess) -> None:
        self._engine = engine
        self.pid = engine.pid

    @property
    def returncode(self) -> int | None:
        return self._engine.code

    def poll(self) -> int | None:
        return self._engine.code

    def wait(self, timeout: float | None = None) -> int:
        assert self._engine.code is not None
        return self._engine.code
