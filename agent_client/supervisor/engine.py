"""One engine: from its order to its end. What happens is reported; nothing here decides what should run."""

import asyncio
import contextlib
import hashlib
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent_client.engines import Launch, Readiness
from agent_client.ledger import Entry
from agent_client.profile import Profile
from agent_client.protocol.messages import ShardReport, ShardSpec
from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from agent_client.supervisor import processes
from agent_client.supervisor.evidence import rotated

STOP_STUCK_RECHECK_SECONDS = 5.0
LOG_CHECK_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What the engine needs of the rest of the agent."""

    probe: Callable[[str, Readiness, str, str | None], Awaitable[bool]]
    running: Callable[[str, str | None], Awaitable[int | None]]  # requests in the engine
    mark: str
    log_bytes: int
    on_change: Callable[["Engine"], None]


@dataclass(slots=True, kw_only=True)
class Engine:
    shard: str
    epoch: int
    spec: ShardSpec
    profile: Profile
    state: ShardState = ShardState.ASSIGNED
    code: str = ""
    detail: str = ""
    hint: str = ""
    entry: Entry | None = None
    readiness: Readiness = field(default_factory=Readiness)
    exit_code: int | None = None
    exit_signal: int | None = None
    tail: tuple[str, ...] = ()
    stopping: bool = False
    child: "subprocess.Popen[bytes] | None" = None
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None
    drain_task: "asyncio.Task[None] | None" = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED_SHARD_STATES

    def pids(self, mark: str) -> list[int]:
        return processes.of_shard(mark, self.shard, self.epoch)

    def report(self) -> ShardReport:
        reachable = self.entry is not None and self.spec.rank == 0 and not self.ended
        return ShardReport(
            shard=self.shard,
            epoch=self.epoch,
            state=self.state,
            code=self.code,
            detail=self.detail,
            hint=self.hint,
            endpoint=self.entry.endpoint if self.entry and reachable else None,
            pids=(self.entry.pid,) if self.entry and self.entry.pid and not self.ended else (),
            exit_code=self.exit_code,
            exit_signal=self.exit_signal,
            tail=self.tail,
        )

    def move(self, state: ShardState, tools: Tools, *, code: str = "", detail: str = "", hint: str = "") -> None:
        self.state, self.code, self.detail, self.hint = state, code, detail, hint
        tools.on_change(self)


def spawn(engine: Engine, launch: Launch, entry: Entry, *, mark: str, base_env: Mapping[str, str]) -> None:
    """Start the process in a session of its own, its output to a file: it outlives the agent. Raises OSError."""
    env = dict(base_env) | {variable.name: variable.value for variable in launch.env}
    env |= {processes.SHARD_VARIABLE: f"{engine.shard}@{engine.epoch}", processes.STATE_VARIABLE: mark}
    Path(entry.log_path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(entry.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        engine.child = subprocess.Popen(
            launch.argv,
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            env=env,
            start_new_session=True,
            cwd=str(Path(entry.log_path).parent),
        )
    finally:
        os.close(handle)
    entry.pid = engine.child.pid
    entry.start_time = processes.start_time(entry.pid) or 0
    entry.argv_hash = hashlib.sha256("\0".join(launch.argv).encode()).hexdigest()


def watch_exit(engine: Engine) -> None:
    """Set `exited` the moment the process ends; works for adopted ones, which are nobody's children."""
    assert engine.entry
    loop = asyncio.get_running_loop()
    try:
        handle = os.pidfd_open(engine.entry.pid)
    except OSError:
        engine.exited.set()
        return

    def ended() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        if engine.child is not None:
            code = engine.child.wait()
            engine.exit_code, engine.exit_signal = (code, None) if code >= 0 else (None, -code)
        engine.exited.set()

    loop.add_reader(handle, ended)


async def until_ready(engine: Engine, tools: Tools, *, deadline_seconds: float) -> bool:
    """Probe until the engine answers for real; False when it ended first. Raises TimeoutError at the deadline.

    A rank above the first answers nobody (vLLM), or says 200 with nothing behind it (SGLang): that it runs must do.
    """
    assert engine.entry
    if engine.spec.rank > 0:
        return not engine.exited.is_set()
    pause = 0.1
    async with asyncio.timeout(deadline_seconds):
        while not engine.exited.is_set():
            name = engine.spec.served_names[0]
            if await tools.probe(engine.entry.endpoint, engine.readiness, name, engine.spec.engine_key):
                return True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(engine.exited.wait(), pause)
            pause = min(pause * 1.5, 2.0)
    return False


async def until_exit(engine: Engine, tools: Tools) -> None:
    """Keep the log bounded until the process ends."""
    assert engine.entry
    while not engine.exited.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(engine.exited.wait(), LOG_CHECK_SECONDS)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(rotate, Path(engine.entry.log_path), tools.log_bytes)


async def end(engine: Engine, tools: Tools, *, grace_seconds: float) -> None:
    """TERM to the group, then KILL to it and to all that carry the shard's mark. Ended only when none is left."""
    entry = engine.entry
    engine.stopping = True
    if not engine.ended:
        engine.move(ShardState.STOPPING, tools)
    if entry is not None and entry.pid:
        processes.signal_group(entry.pid, entry.start_time, signal.SIGTERM)
        processes.signal_all(engine.pids(tools.mark), signal.SIGTERM)
        if await _gone(engine, tools, grace_seconds):
            return
        processes.signal_group(entry.pid, entry.start_time, signal.SIGKILL)
        processes.signal_all(engine.pids(tools.mark), signal.SIGKILL)
        while not await _gone(engine, tools, STOP_STUCK_RECHECK_SECONDS):
            left = engine.pids(tools.mark)
            text = f"cannot end {engine.spec.replica}: processes {', '.join(map(str, left))} do not die"
            if engine.state is not ShardState.STOP_STUCK:
                engine.move(
                    ShardState.STOP_STUCK, tools, code="stop_stuck", detail=text, hint="they may hang in the driver"
                )
            processes.signal_all(left, signal.SIGKILL)


async def _gone(engine: Engine, tools: Tools, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            pause = 0.02
            while await asyncio.to_thread(engine.pids, tools.mark):
                await asyncio.sleep(pause)
                pause = min(pause * 2, 0.5)
            return True
    return False


def rotate(path: Path, longest: int) -> None:
    """Copy and cut: the engine keeps its handle (O_APPEND) and never blocks; two files of `longest` bytes at most."""
    if path.stat().st_size <= longest:
        return
    with path.open("rb") as source, rotated(path).open("wb") as target:
        source.seek(-longest, os.SEEK_END)
        while block := source.read(1024 * 1024):
            target.write(block)
    os.truncate(path, 0)
