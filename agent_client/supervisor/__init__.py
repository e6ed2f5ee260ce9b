"""Takes orders for a node: starts, adopts, drains and ends engines, and reports every change.

Orders are fenced by epoch: the highest seen of each shard is on disk, lower ones are refused. An engine is remembered
before it is spawned, so a crash at any point leaves something to adopt or to end, never two. What an engine goes
through stands in `machine`; `engine` carries it out.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import signal
import time
from collections.abc import Callable

from agent_client.config import AgentConfig
from agent_client.ledger import Entry, Ledger
from agent_client.machine import Limits, events
from agent_client.profile import ProfileError, parse_profile
from agent_client.protocol.codec import plain_part
from agent_client.protocol.messages import Desired, DesiredShard, ShardReport
from agent_client.protocol.states import FailureCode, ShardState
from agent_client.supervisor import processes
from agent_client.supervisor.attempt import Held
from agent_client.supervisor.choosing import log_path
from agent_client.supervisor.engine import Engine
from agent_client.supervisor.evidence import TAIL_BYTES
from agent_client.supervisor.explaining import output_of
from agent_client.supervisor.found import Found
from agent_client.supervisor.ground import Figures, Ground, NodeTools
from agent_client.supervisor.left_behind import look

__all__ = ["Figures", "NodeTools", "OrderRefused", "Supervisor"]

log = logging.getLogger(__name__)

STRAY_GRACE_SECONDS = 1.0


class OrderRefused(Exception):
    """cannot take the order."""

    def __init__(self, code: FailureCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class Supervisor:
    def __init__(
        self,
        *,
        config: AgentConfig,
        ledger: Ledger,
        boot_id: str,
        tools: NodeTools,
        on_report: Callable[[ShardReport], None],
        limits: Limits | None = None,
    ) -> None:
        mark = hashlib.sha256(str(config.state_dir).encode()).hexdigest()[:24]
        self._ground = Ground(
            config=config,
            ledger=ledger,
            boot_id=boot_id,
            mark=mark,
            tools=dataclasses.replace(
                tools, free_ports=lambda taken, n: tools.free_ports(taken | self._found_ports(), n)
            ),
            limits=limits or Limits(),
            on_report=on_report,
            labels=self._accounted,
            cgroups=tools.cgroups(mark),
        )
        self._engines: dict[str, Engine] = {}
        self._found: dict[str, Found] = {}  # label → an engine of ours that the ledger does not know
        self._going: dict[str, Found] = {}  # of those, what is being ended
        self.state_lost = ledger.lost

    # -- what is there ------------------------------------------------------------------------------------------------

    def reports(self) -> tuple[ShardReport, ...]:
        known = tuple(report for engine in self._engines.values() for report in engine.reports())
        address = self._ground.config.mgmt_addr
        found = tuple(each.report(address) for each in self._found.values())
        return known + found + tuple(each.report(address, ShardState.STOPPING) for each in self._left())

    def owned_pids(self) -> set[int]:
        return set(self._ground.members())

    def owned_gpus(self) -> set[str]:
        """UUIDs of the cards that our engines were given."""
        attempts = [(engine, attempt) for engine in list(self._engines.values()) for attempt in engine.attempts()]
        held = [engine.held(attempt.epoch) for engine, attempt in attempts if not attempt.ended]
        return {uuid for each in held if each is not None and each.entry for uuid in each.spec.gpus}

    def tail(self, shard: str, epoch: int, lines: int) -> tuple[str, ...]:
        engine = self._engines.get(shard)
        held = engine.held(epoch) if engine else None
        if engine is None or held is None or held.entry is None:
            return ()
        return tuple(output_of(self._ground, held, TAIL_BYTES)[-lines:]) if lines > 0 else ()

    async def adopt(self) -> None:
        """Take back what an earlier agent process started. Call once, before the stream opens."""
        ground = self._ground
        if ground.cgroups is not None:
            await asyncio.to_thread(ground.cgroups.sweep)
        left = await asyncio.to_thread(look, ground)
        for held, alive in left.known:
            assert held.entry is not None
            engine = self._engines[held.shard] = Engine(ground)
            engine.take(held, adopted=alive, ready=held.entry.ready)
            log.info("engine.adopted shard=%s epoch=%d pid=%d alive=%s", held.shard, held.epoch, held.entry.pid, alive)
        self._found = left.found

    # -- orders -------------------------------------------------------------------------------------------------------

    async def apply(self, desired: Desired) -> None:
        """Bring the node to the whole desired state."""
        wanted = {item.shard: item for item in desired.shards}
        for shard, engine in list(self._engines.items()):
            item = wanted.get(shard)
            newest = engine.newest
            if item is not None and newest is not None and item.epoch >= newest.epoch:
                continue
            if engine.ended:
                await engine.close()
                del self._engines[shard]
            elif item is None:
                self._stop(engine, None, "not in the desired state")
        self.state_lost = False
        await self._end_strays({f"{item.shard}@{item.epoch}" for item in desired.shards} & set(self._found))
        for item in desired.shards:
            try:
                await self.start(item)
            except OrderRefused as refused:
                log.warning("order.refused shard=%s epoch=%d code=%s", item.shard, item.epoch, refused.code)
            if item.draining:
                await self.drain(item.shard, item.epoch, deadline_seconds=item.drain_seconds or 0.0, reason="desired")
            elif (current := self._engines.get(item.shard)) is not None:
                current.feed(events.DrainCancelled(epoch=item.epoch))
        self._ground.ledger.forget_epochs(set(wanted) | set(self._engines))

    async def start(self, order: DesiredShard) -> None:
        """Begin to run a shard; a repeated order changes nothing. Raises OrderRefused."""
        engine = self._engines.get(order.shard)
        newest = engine.newest if engine else None
        if newest is not None and newest.epoch == order.epoch:
            return
        label = f"{order.shard}@{order.epoch}"
        highest = max(self._ground.ledger.highest_epoch(order.shard), newest.epoch if newest else 0)
        if order.epoch < highest and (newest is not None or label not in self._found):
            text = f"cannot start {order.spec.replica} at epoch {order.epoch}: epoch {highest} was ordered since"
            raise OrderRefused(FailureCode.STALE_ORDER, text)
        try:
            profile = parse_profile(order.spec.profile)
        except ProfileError as error:
            raise OrderRefused(FailureCode.INVALID_PROFILE, str(error)) from None
        held = Held(shard=order.shard, epoch=order.epoch, spec=order.spec, profile=profile)
        if beside := self._beside(order.shard, label):
            await self._end_strays(set(self._found) - beside)
        if (engine := self._engines.get(order.shard)) is None:
            engine = self._engines[order.shard] = Engine(self._ground)
        found = self._found.pop(label, None)
        if found is None:
            return engine.take(held)
        held.entry = self._recognised(held, found)
        with contextlib.suppress(OSError):
            self._ground.ledger.record(held.entry)
        engine.take(held, adopted=True)

    async def stop(self, shard: str, epoch: int, *, grace_seconds: float | None, reason: str) -> None:
        """End an engine. Of a newer epoch than the order's it changes nothing; of one that is gone it says so."""

        def meant(found: Found) -> bool:
            return found.shard == shard and found.epoch <= epoch

        if any(meant(found) for found in self._found.values()):
            await self._end_strays({label for label, found in self._found.items() if not meant(found)})
        if any(meant(found) for found in self._left()):
            return  # whoever ends it tells of its end
        engine = self._engines.get(shard)
        newest = engine.newest if engine else None
        if newest is None or newest.ended or newest.epoch < epoch:  # nothing of that epoch ever came, or it has ended
            self._ground.on_report(ShardReport(shard=shard, epoch=epoch, state=ShardState.STOPPED, detail=reason))
        if engine is not None and newest is not None and not newest.ended:
            self._stop(engine, grace_seconds, reason, highest=epoch)

    async def drain(self, shard: str, epoch: int, *, deadline_seconds: float, reason: str) -> None:
        """Let the requests in the engine finish, until the deadline; then end it."""
        engine = self._engines.get(shard)
        if engine is not None:
            engine.feed(events.DrainAsked(epoch=epoch, seconds=deadline_seconds, reason=reason))

    async def close(self, *, stop_engines: bool) -> None:
        """The agent ends. Engines live on unless told otherwise; one that does not die is left, and was told of."""
        engines = list(self._engines.values())
        if stop_engines:
            for engine in engines:
                self._stop(engine, None, "the agent stops its engines")
            await asyncio.gather(*(_settled(engine) for engine in engines))
        await asyncio.gather(*(engine.close() for engine in engines))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _stop(self, engine: Engine, grace_seconds: float | None, reason: str, *, highest: int | None = None) -> None:
        for attempt in reversed(engine.attempts()):  # the one that waits must not begin when the other has ended
            if highest is not None and attempt.epoch > highest:
                continue
            grace = attempt.limits.grace if grace_seconds is None else grace_seconds
            engine.feed(events.StopAsked(epoch=attempt.epoch, grace=grace, reason=reason))

    def _labels(self) -> set[str]:
        return {f"{shard}@{a.epoch}" for shard, engine in self._engines.items() for a in engine.attempts()}

    def _accounted(self) -> set[str]:
        """What a start may find alive beside it."""
        return self._labels() | set(self._found)

    def _beside(self, shard: str, label: str) -> set[str]:
        """What was found of a shard and can't be what is ordered of it. Without its port nothing can be asked of it."""
        ours = {key: found for key, found in self._found.items() if found.shard == shard}
        return {key for key, found in ours.items() if key != label or not found.port}

    def _found_ports(self) -> set[int]:
        """An engine that still loads has not bound its port."""
        return {found.port for found in [*self._found.values(), *self._going.values()]}

    def _left(self) -> list[Found]:
        """What is being ended and has not ended."""
        return [each for each in self._going.values() if processes.same_process(each.pid, each.start_time)]

    def _recognised(self, held: Held, found: Found) -> Entry:
        """The ledger is gone, but the process tells whose it is, and the order tells the rest."""
        return Entry(
            shard=held.shard,
            epoch=held.epoch,
            boot_id=self._ground.boot_id,
            port=found.port,
            pid=found.pid,
            start_time=found.start_time,
            endpoint=found.endpoint(self._ground.config.mgmt_addr),
            log_path=str(log_path(self._ground, held.shard, held.epoch)),
            spec=plain_part(held.spec),
            cgroup=self._ground.cgroups.find(held.label) if self._ground.cgroups is not None else "",
        )

    async def _end_strays(self, kept: set[str]) -> None:
        """Marked processes that nothing accounts for: of an older epoch, or not wanted any more.

        An engine among them is told of as long as it lives: its replica must not start elsewhere beside it.
        """
        self._going |= {label: found for label, found in self._found.items() if label not in kept}
        self._found = {label: found for label, found in self._found.items() if label in kept}
        strays = set(await self._ground.strays(lambda: self._labels() | kept))
        if strays:
            await self._end(strays)
        left = set((await asyncio.to_thread(processes.marked, self._ground.mark)).values()) if self._going else set()
        for label in [label for label in self._going if label not in left]:
            found = self._going.pop(label)
            self._ground.on_report(ShardReport(shard=found.shard, epoch=found.epoch, state=ShardState.STOPPED))

    async def _end(self, strays: set[int]) -> None:
        log.warning("engine.strays pids=%s", sorted(strays))
        leftovers = await asyncio.to_thread(processes.shared_memory, strays)
        number, kill_at = signal.SIGTERM, time.monotonic() + STRAY_GRACE_SECONDS
        while strays and time.monotonic() < kill_at + STRAY_GRACE_SECONDS:  # nothing starts beside them
            processes.signal_all(strays, number)
            await asyncio.sleep(0.1)
            strays &= set(await asyncio.to_thread(self._ground.members))
            number = signal.SIGKILL if time.monotonic() >= kill_at else signal.SIGTERM
        await asyncio.to_thread(processes.remove_shared_memory, leftovers)


async def _settled(engine: Engine) -> None:
    while not engine.ended and (engine.attempt is None or engine.attempt.state is not ShardState.STOP_STUCK):
        engine.changed.clear()
        await engine.changed.wait()
