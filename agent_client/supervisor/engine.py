"""One shard's engines: carries out what the table says, and tells the table what came of it. Decides nothing."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path

from agent_client.engines import Miss
from agent_client.engines.phases import farthest
from agent_client.launching import base_environment
from agent_client.machine import Attempt, Failure, Shard, Why, effects, events, step, wake_at
from agent_client.profile import Profile, Refusal
from agent_client.protocol.messages import ShardReport
from agent_client.protocol.states import FailureCode, ShardState
from agent_client.supervisor import cgroup, output, processes
from agent_client.supervisor.attempt import Held, limits, spawn
from agent_client.supervisor.choosing import choose
from agent_client.supervisor.explaining import explain, refuse
from agent_client.supervisor.ground import Ground

log = logging.getLogger(__name__)

PORT_IN_USE = "port-in-use"  # the code of engines.causes
STRAY_SECONDS = 0.5  # between two looks at processes that must end before anything starts
FOLLOW_SECONDS = 0.5  # between two looks at the output
FLOOD_SECONDS = 0.05  # the same while it has to be cut
ANSWER_SECONDS = 10.0  # for one token of an engine that has answered before: two such silences unroute it in a minute
SEE_SECONDS = 60.0  # between two looks at what a ready engine has in shared memory
LIVE = (ShardState.LOADING, ShardState.READY, ShardState.DRAINING)


class Engine:
    """Of one shard: the attempt that is there and, while it ends, the one that follows."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._machine = Shard()
        self._held: dict[int, Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self.changed = asyncio.Event()  # set at every report

    # -- what is there ------------------------------------------------------------------------------------------------

    @property
    def attempt(self) -> Attempt | None:
        return self._machine.attempt

    @property
    def newest(self) -> Attempt | None:
        return self._machine.following or self._machine.attempt

    @property
    def ended(self) -> bool:
        newest = self.newest
        return newest is None or newest.ended

    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(a for a in (self._machine.attempt, self._machine.following) if a is not None)

    def held(self, epoch: int) -> Held | None:
        return self._held.get(epoch)

    def reports(self) -> tuple[ShardReport, ...]:
        now = time.monotonic()
        return tuple(self._held[attempt.epoch].report(attempt, now) for attempt in self.attempts())

    # -- the table ----------------------------------------------------------------------------------------------------

    def take(self, held: Held, *, adopted: bool | None = None, ready: bool = False) -> None:
        """A new attempt; `adopted` says of an older agent's one whether its process still runs."""
        self._held[held.epoch] = held
        bounds = limits(self._ground.limits, held.profile, held.spec)
        if adopted is None:
            self.feed(events.Ordered(epoch=held.epoch, limits=bounds))
        else:
            self.feed(events.Adopted(epoch=held.epoch, limits=bounds, alive=adopted, ready=ready))
        self._held = {attempt.epoch: self._held[attempt.epoch] for attempt in self.attempts()}

    def feed(self, event: events.Event) -> None:
        if self._closed:
            return
        self._machine, found = step(self._machine, event, time.monotonic())
        for effect in found:
            self._carry_out(effect)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        attempt, due = self._machine.attempt, wake_at(self._machine)
        if attempt is not None and due is not None:
            tick = events.Tick(epoch=attempt.epoch)
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - time.monotonic()), self.feed, tick)

    def _carry_out(self, effect: effects.Effect) -> None:
        held = self._held[effect.epoch]
        text = f"cannot run {held.spec.replica}: the agent itself failed; its log says why"
        broken = Failure(code=FailureCode.SPAWN_FAILED.value, detail=text)
        match effect:
            case effects.Check():
                self._begin(self._check(held), events.Checked(epoch=held.epoch, refused=broken))
            case effects.Foresee():
                self._begin(self._foresee(held), events.Foreseen(epoch=held.epoch, refused=broken))
            case effects.Spawn():
                self._begin(self._spawn(held), events.NotSpawned(epoch=held.epoch, failure=broken))
            case effects.Watch():
                self._watch(held)
            case effects.Probe():
                self._begin(self._probe(held), events.Missed(epoch=held.epoch))
            case effects.Remember():
                self._remember(held)
            case effects.SendTerm():
                self._begin(self._send(held, signal.SIGTERM))
            case effects.SendKill():
                self._begin(self._send(held, signal.SIGKILL))
            case effects.CheckEmpty():
                self._begin(self._until_empty(held))
            case effects.Explain():
                unexplained = replace(broken, code=FailureCode.EXITED.value)
                explained = events.Explained(epoch=held.epoch, failure=unexplained)
                self._begin(self._explain(held, effect.why, effect.seconds), explained)
            case effects.Forget():
                self._ground.ledger.forget(held.shard, held.epoch)
            case effects.Report():
                self._report(held, effect.attempt)

    def _report(self, held: Held, attempt: Attempt) -> None:
        log.info(
            "shard.state shard=%s epoch=%d state=%s code=%s phase=%s detail=%s",
            *(held.shard, held.epoch, attempt.shown, attempt.code, attempt.phase, attempt.detail),
        )
        self._ground.on_report(held.report(attempt, time.monotonic()))
        self.changed.set()

    def _state(self, epoch: int) -> ShardState | None:
        attempt = self._machine.attempt
        return attempt.state if attempt is not None and attempt.epoch == epoch else None

    # -- the start ----------------------------------------------------------------------------------------------------

    async def _check(self, held: Held) -> None:
        await self._until_alone(held)
        if held.profile.from_hub and not await self._fetched(held):
            return
        refusal = await asyncio.to_thread(self._ground.tools.preflight, held.profile, held.spec)
        self.feed(events.Checked(epoch=held.epoch, refused=await self._refused(held, refusal)))

    async def _refused(self, held: Held, refusal: Refusal | None) -> Failure | None:
        return None if refusal is None else await asyncio.to_thread(refuse, self._ground, held, refusal)

    async def _foresee(self, held: Held) -> None:
        """A refused order leaves no attempt behind, but older ones are refused from now on as after any other."""
        refusal = await self._ground.tools.foresee(held.profile, held.spec, held.shard)
        if refusal is not None:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._ground.ledger.see, held.shard, held.epoch)
        self.feed(events.Foreseen(epoch=held.epoch, refused=await self._refused(held, refusal)))

    async def _fetched(self, held: Held) -> bool:
        """Bring the model here, as long as it is wanted; False when it is not to go on."""

        def show(phase: str, share: float | None) -> None:
            self.feed(events.Progressed(epoch=held.epoch, phase=phase, place=0, share=share))

        fetching = asyncio.ensure_future(self._ground.tools.fetch(held.profile, show))
        try:
            while not fetching.done() and self._state(held.epoch) is ShardState.VALIDATING:
                await asyncio.wait([fetching], timeout=STRAY_SECONDS)
            if not fetching.done():
                return False
        finally:
            fetching.cancel()
        found = fetching.result()
        if isinstance(found, Profile):
            held.profile = found
            return True
        failure = Failure(code=found[0], detail=f"cannot start {held.spec.replica}: {found[1]}", hint=found[2])
        self.feed(events.Checked(epoch=held.epoch, refused=failure))
        return False

    async def _until_alone(self, held: Held) -> None:
        """Cards are not free while an ownerless process lives, whatever the books say: nothing starts before."""
        told, leftovers = "", set[str]()
        while self._state(held.epoch) is ShardState.VALIDATING:
            strays = await self._ground.strays(self._ground.labels, starting=held.shard)
            if not strays:
                return await asyncio.to_thread(processes.remove_shared_memory, leftovers)
            leftovers |= await asyncio.to_thread(processes.shared_memory, strays)
            processes.signal_all(strays, signal.SIGKILL)
            names = ", ".join(map(str, strays))
            text = f"{held.spec.replica} waits until processes {names} of an earlier engine have ended"
            attempt = self._machine.attempt
            if text != told and attempt is not None:
                told = text
                self._ground.on_report(replace(held.report(attempt, time.monotonic()), detail=text))
            await asyncio.sleep(STRAY_SECONDS)

    async def _spawn(self, held: Held) -> None:
        failure = await self._try_spawn(held)
        if failure is None:
            self.feed(events.Spawned(epoch=held.epoch))
        else:
            self.feed(events.NotSpawned(epoch=held.epoch, failure=failure))

    async def _try_spawn(self, held: Held) -> Failure | None:
        ground, spec = self._ground, held.spec
        async with ground.choosing:  # two starts at once must not choose one port
            launch = await asyncio.to_thread(choose, ground, held)
        if isinstance(launch, Failure):
            return launch
        assert held.entry is not None
        try:
            spawn(held, launch, mark=ground.mark, base_env=base_environment(), cgroups=ground.cgroups)
        except OSError as error:
            text = f"cannot start {spec.replica}: {launch.argv[0]}: {error.strerror}"
            return Failure(code=FailureCode.SPAWN_FAILED.value, detail=text)
        with contextlib.suppress(OSError):
            ground.ledger.record(held.entry)
        log.info(
            "engine.spawned shard=%s epoch=%d pid=%d port=%d", held.shard, held.epoch, held.entry.pid, held.entry.port
        )
        return None

    def _remember(self, held: Held) -> None:
        if held.entry is not None:
            held.entry.ready = True
            with contextlib.suppress(OSError):
                self._ground.ledger.record(held.entry)

    async def _probe(self, held: Held) -> None:
        assert held.entry is not None
        name, key = held.spec.served_names[0], held.spec.engine_key
        readiness = held.readiness
        if self._state(held.epoch) is ShardState.READY:
            chat = readiness.chat and not readiness.one_at_a_time
            readiness = replace(readiness, chat=chat, answer_seconds=ANSWER_SECONDS)
        held.probed = await self._ground.tools.probe(held.entry.endpoint, readiness, name, key)
        if held.probed.miss is None:
            self.feed(events.Answered(epoch=held.epoch))
        else:
            self.feed(events.Missed(epoch=held.epoch, refused=held.probed.miss is Miss.REFUSED))

    # -- while it runs ------------------------------------------------------------------------------------------------

    def _watch(self, held: Held) -> None:
        """The exit is seen the moment it happens, of adopted processes too, which are nobody's children here."""
        assert held.entry is not None
        self._begin(self._keep_bounded(held))
        self._begin(self._follow(held))
        self._begin(self._look(held))
        loop = asyncio.get_running_loop()
        try:
            handle = os.pidfd_open(held.entry.pid)
        except OSError:
            loop.call_soon(self.feed, events.Exited(epoch=held.epoch))
            return

        def ended() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            if held.child is not None:
                code = held.child.wait()
                held.exit_code, held.exit_signal = (code, None) if code >= 0 else (None, -code)
            self.feed(events.Exited(epoch=held.epoch))

        loop.add_reader(handle, ended)

    async def _keep_bounded(self, held: Held) -> None:
        assert held.entry is not None
        path, longest = Path(held.entry.log_path), self._ground.config.log_bytes
        while self._state(held.epoch) in (*LIVE, ShardState.STOPPING, ShardState.STOP_STUCK):
            flooded = False
            with contextlib.suppress(OSError):
                flooded = await asyncio.to_thread(output.bound, path, longest)
            await asyncio.sleep(FLOOD_SECONDS if flooded else FOLLOW_SECONDS)

    async def _follow(self, held: Held) -> None:
        """Read in the output how far a start has come."""
        assert held.entry is not None
        follower = output.Follower(Path(held.entry.log_path))
        while self._state(held.epoch) is ShardState.LOADING:
            phase = await asyncio.to_thread(lambda: farthest(follower.lines()))
            if phase is not None:
                self.feed(events.Progressed(epoch=held.epoch, phase=phase.name, place=phase.place, share=phase.share))
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _look(self, held: Held) -> None:
        """The engine's own figures, while it serves; and what it has in shared memory, for when it is killed."""
        assert held.entry is not None
        bounds = self._ground.limits
        look_at = see_at = 0.0
        while (state := self._state(held.epoch)) in LIVE:
            await asyncio.sleep(min(bounds.look, bounds.drain_look))
            now = time.monotonic()
            await asyncio.to_thread(held.follow_children)
            if now >= see_at:
                see_at = now + SEE_SECONDS
                await asyncio.to_thread(held.see, self._ground)
            serves = state is ShardState.DRAINING or (state is ShardState.READY and now >= look_at)
            if held.spec.rank > 0 or not serves:
                continue
            look_at = now + bounds.look
            figures = await self._ground.tools.load(held.entry.endpoint, held.spec.engine_key)
            held.running, held.waiting = figures.running, figures.waiting
            requests = None if figures.running is None else figures.running + (figures.waiting or 0)
            looked = events.Looked(epoch=held.epoch, requests=requests, figures=figures.moving)
            self.feed(replace(looked, refused=figures.refused))

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _send(self, held: Held, number: signal.Signals) -> None:
        """To the group, and to all that carry the shard's mark: children may have left group and session."""
        if held.entry is None:
            return
        if number is signal.SIGKILL and held.cgroup is not None:
            cgroup.kill(held.cgroup)
        processes.signal_group(held.entry.pid, held.entry.start_time, number)
        processes.signal_all(await asyncio.to_thread(held.see, self._ground), number)

    async def _until_empty(self, held: Held) -> None:
        pause = 0.02
        while self._state(held.epoch) in (ShardState.STOPPING, ShardState.STOP_STUCK):
            what = await asyncio.to_thread(self._left, held)
            if not what:
                await asyncio.to_thread(processes.remove_shared_memory, held.shared_memory)
                if held.cgroup is not None:
                    await asyncio.to_thread(cgroup.remove, held.cgroup)
                return self.feed(events.Emptied(epoch=held.epoch))
            self.feed(events.Remaining(epoch=held.epoch, what=what))
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)

    def _left(self, held: Held) -> str:
        """What is still there, in words; "" when nothing is. Cards are looked at when no process is left."""
        pids = held.see(self._ground)
        if pids:
            return f"cannot end {held.spec.replica}: processes {', '.join(map(str, pids))} do not die"
        if held.entry is None or not held.entry.pid or not held.spec.gpus:
            return ""
        what = self._ground.tools.holders(held.spec.gpus)
        return f"cannot free the cards of {held.spec.replica}: {what}" if what else ""

    async def _explain(self, held: Held, why: Why, seconds: float) -> None:
        until = None
        if held.entry is not None and why is not Why.EXITED:
            with contextlib.suppress(OSError):
                until = os.stat(held.entry.log_path).st_size  # before the noise that our own signals make
        failure = await asyncio.to_thread(explain, self._ground, held, why, seconds, until)
        again = failure.code == PORT_IN_USE and held.spec.nodes == 1
        self.feed(events.Explained(epoch=held.epoch, failure=failure, again=again))

    # -- tasks --------------------------------------------------------------------------------------------------------

    def _begin(self, work: Coroutine[None, None, None], otherwise: events.Event | None = None) -> None:
        """`otherwise`: what the table is told when the work itself breaks, so that no state waits for ever."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def done(task: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("engine.task_failed error=%r", error, exc_info=error)
                if otherwise is not None:
                    self.feed(otherwise)

        task.add_done_callback(done)

    async def close(self) -> None:
        """Let go of it; the engine lives on, and is reaped if it ends while this process is still there."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
