"""Carries orders out: starts, adopts, drains and ends engines, and reports every change.

Orders are fenced by epoch: the highest seen of each shard is on disk, lower ones are refused. An engine is remembered
before it is spawned, so a crash at any point leaves something to adopt or to end, never two.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from agent_client.config import AgentConfig
from agent_client.engines import Launch, PlanError, Readiness, internal_ports, plan
from agent_client.launching import base_environment, launch_spec, no_ports, read_secrets
from agent_client.ledger import Entry, Ledger
from agent_client.profile import Profile, ProfileError, parse_profile
from agent_client.protocol.codec import MessageError, plain_part, read_part
from agent_client.protocol.messages import Desired, DesiredShard, ShardReport, ShardSpec
from agent_client.protocol.states import FailureCode, ShardState
from agent_client.supervisor import processes
from agent_client.supervisor.engine import (
    Engine,
    Tools,
    end,
    spawn,
    until_exit,
    until_ready,
    watch_exit,
)
from agent_client.supervisor.evidence import (
    OUTPUT_BYTES,
    TAIL_BYTES,
    TAIL_LINES,
    Failure,
    failure_of_exit,
    failure_of_start,
    read_output,
    redacted,
)

log = logging.getLogger(__name__)


class OrderRefused(Exception):
    """cannot take the order."""

    def __init__(self, code: FailureCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeTools:
    """What the supervisor needs of its siblings; app wires it."""

    preflight: Callable[[Profile, ShardSpec], tuple[str, str, str] | None]  # code, sentence, hint
    command: Callable[[Profile], tuple[str, ...]]
    free_ports: Callable[[set[int], int], range | None]  # that many in a row, none of those taken
    probe: Callable[[str, Readiness, str, str | None], Awaitable[bool]]
    running: Callable[[str, str | None], Awaitable[int | None]]


class Supervisor:
    def __init__(
        self,
        *,
        config: AgentConfig,
        ledger: Ledger,
        boot_id: str,
        tools: NodeTools,
        on_report: Callable[[ShardReport], None],
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._boot_id = boot_id
        self._node = tools
        self._on_report = on_report
        self._mark = hashlib.sha256(str(config.state_dir).encode()).hexdigest()[:24]
        self._engines: dict[str, Engine] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._tools = Tools(
            probe=tools.probe,
            running=tools.running,
            mark=self._mark,
            log_bytes=config.log_bytes,
            on_change=self._changed,
        )
        self.state_lost = ledger.lost

    # -- what is there ------------------------------------------------------------------------------------------------

    def reports(self) -> tuple[ShardReport, ...]:
        return tuple(engine.report() for engine in self._engines.values())

    def owned_pids(self) -> set[int]:
        return set(processes.marked(self._mark))

    def owned_gpus(self) -> set[str]:
        """UUIDs of the cards that our engines were given."""
        return {uuid for engine in list(self._engines.values()) if engine.entry for uuid in engine.spec.gpus}

    def tail(self, shard: str, epoch: int, lines: int) -> tuple[str, ...]:
        engine = self._engines.get(shard)
        if engine is None or engine.epoch != epoch or engine.entry is None:
            return ()
        return tuple(self._output(engine, TAIL_BYTES)[-lines:]) if lines > 0 else ()

    async def adopt(self) -> None:
        """Take back what an earlier agent process started. Call once, before the stream opens."""
        found = await asyncio.to_thread(processes.marked, self._mark)
        for entry in list(self._ledger.entries.values()):
            try:
                spec = read_part(ShardSpec, entry.spec)
                profile = parse_profile(spec.profile)
            except (MessageError, ProfileError):
                continue  # written by another version: apply() ends what it left
            engine = Engine(shard=entry.shard, epoch=entry.epoch, spec=spec, profile=profile, entry=entry)
            self._engines[entry.shard] = engine
            if not entry.pid and entry.boot_id == self._boot_id:
                self._find_unrecorded(entry, found)
            if entry.boot_id == self._boot_id and processes.same_process(entry.pid, entry.start_time):
                engine.state = ShardState.READY if entry.ready else ShardState.LOADING
                watch_exit(engine)
                engine.task = self._spawn_task(self._live(engine))
                log.info("engine.adopted shard=%s epoch=%d pid=%d", entry.shard, entry.epoch, entry.pid)
            else:
                engine.task = self._spawn_task(self._clean_up_dead(engine))

    def _find_unrecorded(self, entry: Entry, found: Mapping[int, str]) -> None:
        """The agent died between the spawn and its record: the oldest process with the mark is the engine."""
        pids = [pid for pid, label in found.items() if label == f"{entry.shard}@{entry.epoch}"]
        leaders = [pid for pid in pids if os.getpgid(pid) == pid]
        if leaders:
            entry.pid = min(leaders)
            entry.start_time = processes.start_time(entry.pid) or 0

    async def _clean_up_dead(self, engine: Engine) -> None:
        """The process is gone; children that outlived it are ended before anything else may start."""
        await end(engine, self._tools, grace_seconds=0.0)
        self._fail(engine, await asyncio.to_thread(self._failure, engine))

    # -- orders -------------------------------------------------------------------------------------------------------

    async def apply(self, desired: Desired) -> None:
        """Bring the node to the whole desired state."""
        wanted = {item.shard: item for item in desired.shards}
        for shard, engine in list(self._engines.items()):
            item = wanted.get(shard)
            if item is not None and item.epoch >= engine.epoch:
                continue
            if engine.ended:
                del self._engines[shard]
            elif item is None:
                self._begin_stop(engine, engine.profile.stop_grace_seconds, "not in the desired state")
        self.state_lost = False
        await self._end_strays()
        for item in desired.shards:
            try:
                await self.start(item)
            except OrderRefused as refused:
                log.warning("order.refused shard=%s epoch=%d code=%s", item.shard, item.epoch, refused.code)
            if item.draining:
                await self.drain(item.shard, item.epoch, deadline_seconds=item.drain_seconds or 0.0, reason="desired")
        self._ledger.forget_epochs(set(wanted) | set(self._engines))

    async def start(self, order: DesiredShard) -> None:
        """Begin to run a shard; a repeated order changes nothing. Raises OrderRefused."""
        current = self._engines.get(order.shard)
        if current is not None and current.epoch == order.epoch:
            return
        highest = max(self._ledger.highest_epoch(order.shard), current.epoch if current else 0)
        if order.epoch < highest:
            text = f"cannot start {order.spec.replica} at epoch {order.epoch}: epoch {highest} was ordered since"
            raise OrderRefused(FailureCode.STALE_ORDER, text)
        try:
            profile = parse_profile(order.spec.profile)
        except ProfileError as error:
            raise OrderRefused(FailureCode.INVALID_PROFILE, str(error)) from None
        engine = Engine(shard=order.shard, epoch=order.epoch, spec=order.spec, profile=profile)
        self._engines[order.shard] = engine
        engine.task = self._spawn_task(self._run(engine, current))

    async def stop(self, shard: str, epoch: int, *, grace_seconds: float | None, reason: str) -> None:
        """End an engine. Of a newer epoch than the order's it changes nothing; of one that is gone it says so."""
        engine = self._engines.get(shard)
        if engine is None or (engine.ended and engine.epoch == epoch):
            self._on_report(ShardReport(shard=shard, epoch=epoch, state=ShardState.STOPPED, detail=reason))
        elif engine.epoch <= epoch:
            grace = engine.profile.stop_grace_seconds if grace_seconds is None else grace_seconds
            self._begin_stop(engine, grace, reason)

    async def drain(self, shard: str, epoch: int, *, deadline_seconds: float, reason: str) -> None:
        """Let the requests in the engine finish, until the deadline; then end it."""
        engine = self._engines.get(shard)
        if engine is None or engine.epoch != epoch or engine.ended or engine.stopping or engine.drain_task:
            return
        engine.drain_task = self._spawn_task(self._drain(engine, deadline_seconds, reason))

    async def close(self, *, stop_engines: bool) -> None:
        """The agent ends. Engines live on unless told otherwise."""
        if stop_engines:
            for engine in list(self._engines.values()):
                if not engine.ended:
                    self._begin_stop(engine, engine.profile.stop_grace_seconds, "the agent stops its engines")
            await asyncio.gather(*list(self._background), return_exceptions=True)
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*list(self._background), return_exceptions=True)

    # -- one engine's life --------------------------------------------------------------------------------------------

    async def _run(self, engine: Engine, older: Engine | None) -> None:
        if older is not None and not older.ended:
            await self._stop_now(older, older.profile.stop_grace_seconds, "replaced by a newer order")
        if engine.stopping:
            return self._finish(engine, ShardState.STOPPED, "", "stopped before it started")
        engine.move(ShardState.VALIDATING, self._tools)
        refused = await asyncio.to_thread(self._node.preflight, engine.profile, engine.spec)
        if refused:
            return self._finish(engine, ShardState.FAILED, *refused)
        taken = {port for entry in self._ledger.entries.values() for port in entry.ports}
        count = 1 + internal_ports(engine.profile)
        ports = await asyncio.to_thread(self._node.free_ports, taken, count)
        if ports is None:
            return self._finish(engine, ShardState.FAILED, *no_ports(engine.spec, self._config.policy.ports, count))
        try:
            command = self._node.command(engine.profile)
            launch = plan(launch_spec(self._config, engine.spec, engine.profile, ports=ports, command=command))
        except PlanError as error:
            first = error.problems[0]
            return self._finish(engine, ShardState.FAILED, first.code, str(error), first.hint)
        await self._launch(engine, launch, ports)

    async def _launch(self, engine: Engine, launch: Launch, ports: range) -> None:
        if engine.stopping:
            return None if engine.ended else self._finish(engine, ShardState.STOPPED, "", "stopped before it started")
        engine.readiness = launch.readiness
        address = f"[{self._config.mgmt_addr}]" if ":" in self._config.mgmt_addr else self._config.mgmt_addr
        name = engine.shard.replace("/", "-")
        entry = Entry(
            shard=engine.shard,
            epoch=engine.epoch,
            boot_id=self._boot_id,
            port=ports[0],
            internal_ports=list(ports[1:]),
            spec=plain_part(engine.spec),
            endpoint=f"http://{address}:{ports[0]}",
            log_path=str(self._config.state_dir / "logs" / f"{name}@{engine.epoch}.log"),
        )
        try:
            self._ledger.record(entry)  # before the spawn: a crash in between must not start it twice
        except OSError as error:
            text = f"cannot start {engine.spec.replica}: {self._ledger.path} can't be written ({error.strerror})"
            return self._finish(engine, ShardState.FAILED, FailureCode.STATE_UNWRITABLE.value, text)
        engine.entry = entry
        engine.move(ShardState.LAUNCHING, self._tools)
        try:
            spawn(engine, launch, entry, mark=self._mark, base_env=base_environment())
        except OSError as error:
            self._ledger.forget(engine.shard, engine.epoch)
            text = f"cannot start {engine.spec.replica}: {launch.argv[0]}: {error.strerror}"
            return self._finish(engine, ShardState.FAILED, FailureCode.SPAWN_FAILED.value, text)
        with contextlib.suppress(OSError):
            self._ledger.record(entry)
        log.info("engine.spawned shard=%s epoch=%d pid=%d port=%d", engine.shard, engine.epoch, entry.pid, entry.port)
        watch_exit(engine)
        if not engine.stopping:
            engine.move(ShardState.LOADING, self._tools)
        await self._live(engine)

    async def _live(self, engine: Engine) -> None:
        """From loading (or adoption) to the end of the process."""
        assert engine.entry
        if engine.state is not ShardState.READY:
            deadline = engine.profile.start_timeout_seconds
            try:
                ready = await until_ready(engine, self._tools, deadline_seconds=deadline)
            except TimeoutError:
                return await self._give_up(engine, deadline)
            if ready and not engine.stopping:
                engine.entry.ready = True
                with contextlib.suppress(OSError):
                    self._ledger.record(engine.entry)
                engine.move(ShardState.READY, self._tools)
        await until_exit(engine, self._tools)
        if engine.stopping:
            return  # _stop_now finishes it
        failure = await asyncio.to_thread(self._failure, engine)
        await end(engine, self._tools, grace_seconds=0.0)  # children that outlived it
        self._fail(engine, failure)

    async def _give_up(self, engine: Engine, deadline: float) -> None:
        failure = await asyncio.to_thread(self._failure, engine, deadline)
        await end(engine, self._tools, grace_seconds=engine.profile.stop_grace_seconds)
        self._fail(engine, failure)

    def _begin_stop(self, engine: Engine, grace: float, reason: str) -> None:
        if not engine.stopping:
            engine.stopping = True
            self._spawn_task(self._stop_now(engine, grace, reason))

    async def _stop_now(self, engine: Engine, grace: float, reason: str) -> None:
        log.info("engine.stopping shard=%s epoch=%d reason=%s", engine.shard, engine.epoch, reason)
        await end(engine, self._tools, grace_seconds=grace)
        if not engine.ended:
            self._finish(engine, ShardState.STOPPED, "", reason)

    async def _drain(self, engine: Engine, deadline_seconds: float, reason: str) -> None:
        assert engine.entry or engine.task
        engine.move(ShardState.DRAINING, self._tools, detail=reason)
        idle = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_seconds):
                while not engine.exited.is_set() and idle < 3:
                    await asyncio.sleep(1.0)
                    endpoint = engine.entry.endpoint if engine.entry else ""
                    running = await self._tools.running(endpoint, engine.spec.engine_key)
                    idle = idle + 1 if running == 0 else 0
        engine.stopping = True
        await self._stop_now(engine, engine.profile.stop_grace_seconds, reason or "drained")

    def _finish(self, engine: Engine, state: ShardState, code: str, detail: str, hint: str = "") -> None:
        self._ledger.forget(engine.shard, engine.epoch)
        engine.move(state, self._tools, code=code, detail=detail, hint=hint)

    def _fail(self, engine: Engine, failure: Failure) -> None:
        self._finish(engine, ShardState.FAILED, failure.code, failure.detail, failure.hint)

    def _output(self, engine: Engine, most_bytes: int = OUTPUT_BYTES) -> list[str]:
        if engine.entry is None or not engine.entry.log_path:
            return []
        secrets = [engine.spec.engine_key or "", *read_secrets(self._config).values()]
        return redacted(read_output(Path(engine.entry.log_path), most_bytes=most_bytes), secrets)

    def _failure(self, engine: Engine, deadline_seconds: float | None = None) -> Failure:
        """Why it failed, out of its output, whose tail it keeps. Reads files and takes up to a third of a second."""
        lines = self._output(engine)
        engine.tail = tuple(lines[-TAIL_LINES:])
        if deadline_seconds is not None:
            return failure_of_start(engine.spec.replica, lines, deadline_seconds)
        code, signal_ = engine.exit_code, engine.exit_signal
        seen = code is not None or signal_ is not None
        return failure_of_exit(engine.spec.replica, lines, exit_code=code, exit_signal=signal_, seen=seen)

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _end_strays(self) -> None:
        """Marked processes that no engine here accounts for: left by a lost ledger or an older epoch."""
        known = {f"{engine.shard}@{engine.epoch}" for engine in self._engines.values()}
        found = await asyncio.to_thread(processes.marked, self._mark)
        strays = [pid for pid, label in found.items() if label not in known]
        if strays:
            log.warning("engine.strays pids=%s", strays)
            processes.signal_all(strays, signal.SIGTERM)
            await asyncio.sleep(0.5)
            left = await asyncio.to_thread(processes.marked, self._mark)
            processes.signal_all([pid for pid in strays if pid in left], signal.SIGKILL)

    def _changed(self, engine: Engine) -> None:
        log.info(
            "shard.state node=%s shard=%s epoch=%d state=%s code=%s detail=%s",
            self._config.node_id,
            engine.shard,
            engine.epoch,
            engine.state,
            engine.code,
            engine.detail,
        )
        if self._engines.get(engine.shard) is engine or engine.ended:
            self._on_report(engine.report())

    def _spawn_task(self, work: Any) -> "asyncio.Task[None]":
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("supervisor.task_failed error=%r", error, exc_info=error)
