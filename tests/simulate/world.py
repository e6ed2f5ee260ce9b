"""The whole house in one thread: the real agent, session, consumer, services, reconciler and placement.

Simulated are the clock, the network, the machines' kernels and hardware, and the database's clock; a seed decides
everything that is left to chance, so a seed replays exactly.
"""

import asyncio
import contextlib
import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from django.db import OperationalError, connection

from agent_client.app import Agent
from agent_client.config import AgentConfig
from agent_client.engines import Miss, Probed
from agent_client.profile import parse_entry
from fleet import clock, doorbell
from fleet.agents import pump as pump_module
from fleet.agents.consumer import AgentConsumer
from fleet.domain.actions import StopShard
from fleet.domain.settled import unsettled
from fleet.models import Node
from fleet.services import catalog, liveness, reconciler
from tests.simulate.kernel import Kernel
from tests.simulate.loop import PROCESS, Process, VirtualLoop
from tests.simulate.machine import GPU_CLASS, Machine
from tests.simulate.network import Network
from tests.simulate.stand_ins import JOIN_SECRET, QUICK, patched

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
RECONCILE_SECONDS = 2.0
JUDGE_SECONDS = 1.0
#: Of the ticks that hurry, the share whose choice of models is compared with the whole fleet's.
LOOKED_INTO = 0.25
#: Writes that change nothing of what load_wishes() reads; test_world.py compares.
OF_NO_CONCERN = (
    'UPDATE "fleet_node" SET "last_seen_at" =',
    'UPDATE "fleet_node" SET "applied_revision" =',
    'UPDATE "fleet_node" SET "desired_revision" =',
    *(
        f'{verb} "fleet_{table}"'
        for table in ("listener", "lease", "event", "command", "agentsession")
        for verb in ("INSERT INTO", "UPDATE", "DELETE FROM")
    ),
)


class Died(BaseException):
    """The process that runs this was killed in the middle."""


class World:
    def __init__(self, seed: int, *, nodes: int, cards: int, folder: Path, fleet: Mapping[str, Any]) -> None:
        """`fleet`: settings of the control plane."""
        self.seed, self.fleet = seed, fleet
        self.chance = random.Random(seed)
        self.loop = VirtualLoop()
        self.kernel = Kernel(self.loop, self.chance)
        self.network = Network(self.loop, self.chance)
        self.network.consumer = AgentConsumer
        self.machines = [Machine(f"gpu-{n:02d}", cards, folder / f"gpu-{n:02d}") for n in range(1, nodes + 1)]
        self.web: Process | None = None
        self.worker: Process | None = None
        self.bus_up = True
        self.database_away = False
        self.database_full = False
        self.pool: asyncio.Semaphore | None = None  # of connections; None: there is always one
        self.query_seconds = 0.001
        self.wall_offset = self.database_offset = timedelta()
        self.crash_share = 0.0  # of the control plane's writes, after which its process is gone
        self.lost_answers = 0.0  # share of what the database did and the caller never heard of
        self.stale_share = 0.0  # of the reconciler's ticks, which decide on an old snapshot
        self.fetch: Any = None  # stands in for Agent._fetch, where a story has models by hub id
        self.copy: Machine | None = None  # of one of the machines, disk and identity
        self.over = False
        self._dying = False
        self.processes: list[Process] = []
        self.checks: list[Callable[[], None]] = []
        self.verdict_checks: list[Callable[[dict[int, str]], None]] = []  # given the nodes' statuses before a verdict
        self.log: list[str] = []
        self._rung: asyncio.Event | None = None
        self.pause_decided: float | None = None  # for how long the next tick is paused, between decision and deed
        self._load, self._really_do = reconciler.load_wishes, reconciler._do
        self._really_carry_out = reconciler._carry_out
        self.drained: set[int] = set()  # shards that were told to stop while a node of their replica was drained
        self._old_wishes: dict[bool, Any] = {}  # the last ones read, of either width
        self._read_at: dict[bool, int] = {}  # `changes` then
        self.changes = 0  # writes that may change what a tick wishes for

    def note(self, text: str) -> None:
        self.log.append(f"{self.loop.time() - 1000:7.2f} {text}")

    def after(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        self.loop.from_outside(self.loop.time() + seconds, call, *args)

    # -- clocks ------------------------------------------------------------------------------------------------------

    def database_now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.loop.time()) + self.database_offset

    def wall_now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.loop.time()) + self.wall_offset

    # -- processes ---------------------------------------------------------------------------------------------------

    def spawn(self, process: Process, work: Any) -> None:
        self.processes.append(process)
        token = PROCESS.set(process)
        try:
            task = self.loop.create_task(work)
            task.add_done_callback(self._ended)
            process.tasks.append(task)
        finally:
            PROCESS.reset(token)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        """What a process runs goes on for ever: an end is a mistake of the code or of the simulation."""
        if not task.cancelled() and not self.over:
            error = task.exception() or AssertionError(f"{task} ended")
            self.loop.errors.append({"message": str(error), "exception": error})

    def start_agent(self, machine: Machine) -> None:
        if machine.agent is not None and not machine.agent.dead:
            return
        machine.agent = Process(f"agent-{machine.name}", machine)
        self.note(f"agent of {machine.name} starts")
        self.spawn(machine.agent, self._agent(machine))

    async def _agent(self, machine: Machine) -> None:
        config = AgentConfig(
            server="ws://127.0.0.1:1",
            node_id=machine.node_id,
            mgmt_addr="127.0.0.1",
            state_dir=machine.folder,
            join_secret=JOIN_SECRET,
        )
        machine.folder.mkdir(exist_ok=True)
        await Agent(config).run(stop_engines=False)

    def kill_agent(self, machine: Machine) -> None:
        if machine.agent is not None and not machine.agent.dead:
            self.note(f"agent of {machine.name} is killed")
            machine.agent.dead = True
            for stream in [each for each in self.network.streams if each.node == machine.name]:
                stream.leave()

    def reboot(self, machine: Machine) -> None:
        self.kill_agent(machine)
        self.note(f"{machine.name} reboots")
        for engine in self.kernel.alive(machine.name):
            engine.stuck_until = 0.0
            self.kernel.exit(engine, -9)
        machine.boots += 1

    def start_web(self) -> None:
        if self.web is None or self.web.dead:
            self.note("web starts")
            pump_module._pumps().clear()
            self.web = self.network.listener = Process("web")
            self.processes.append(self.web)

    def kill_web(self) -> None:
        if self.web is not None and not self.web.dead:
            self.note("web is killed")
            self.web.dead = True
            for stream in list(self.network.streams):
                stream.cut()

    def start_worker(self) -> None:
        if self.worker is None or self.worker.dead:
            self.note("worker starts")
            self.worker = Process("worker")
            self._rung = asyncio.Event()
            self.spawn(self.worker, self._reconcile())
            self.spawn(self.worker, self._judge())

    def kill_worker(self) -> None:
        if self.worker is not None and not self.worker.dead:
            self.note("worker is killed")
            self.worker.dead = True

    async def _reconcile(self) -> None:
        assert self._rung
        number, due = 0, self.loop.time()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._rung.wait(), max(due - self.loop.time(), 0.001))
            await asyncio.sleep(0.02)
            self._rung.clear()
            number += 1
            whole = self.loop.time() >= due  # a ring alone lets it look at what is not settled
            due = self.loop.time() + RECONCILE_SECONDS if whole else due
            try:
                if not self.database_away:
                    reconciler.run(holder=f"worker-{id(self.worker)}-{number}", now=clock.now(), whole=whole)
            except OperationalError:
                pass  # the next tick looks anew
            except Died:
                self._dying = False
                self.kill_worker()
                self.after(self.chance.uniform(0.5, 5.0), self.start_worker)
                await self.loop.create_future()

    def pause(self, process: Process | None, seconds: float) -> None:
        if process is not None and not process.dead and not process.paused:
            self.note(f"{process.name} is paused")
            process.paused = True
            self.after(seconds, self.go_on, process)

    def go_on(self, process: Process) -> None:
        if process.paused and not self.over:
            self.note(f"{process.name} goes on")
            self.loop.go_on(process)

    def carry_out(self, actions: Any, now: Any) -> int:
        """Of one tick's decisions; where its worker is to be paused, in between: another one works on meanwhile."""
        if self.pause_decided is None or not actions:
            return self._really_carry_out(actions, now)
        self.note(f"a worker is paused with {len(actions)} actions in hand")
        self.after(self.pause_decided, self._carry_out_late, actions, now)
        self.pause_decided = None
        return 0

    def _carry_out_late(self, actions: Any, now: Any) -> None:
        if self.over or self.database_away:
            return
        self.note("what was decided long ago is done")
        try:
            self._really_carry_out(actions, now)
        except OperationalError:
            pass
        except Died:
            self._dying = False

    def statuses(self) -> dict[int, str]:
        with connection.cursor() as cursor:  # in the database's own language: it is asked twice a second
            return dict(cursor.execute("SELECT id, status FROM fleet_node").fetchall())

    async def _judge(self) -> None:
        while True:
            await asyncio.sleep(JUDGE_SECONDS)
            if not self.database_away:
                with contextlib.suppress(OperationalError):
                    before = self.statuses()
                    liveness.run()
                    for check in self.verdict_checks:
                        check(before)

    # -- what stands in for I/O --------------------------------------------------------------------------------------

    async def in_database(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        async with self.pool or contextlib.nullcontext():
            await asyncio.sleep(self.query_seconds)
        if self.database_away or self.over:
            raise OperationalError("simulated")
        result = function(*args, **kwargs)
        if self.crash_share and self.chance.random() < self.crash_share:
            self.kill_web()
            self.after(self.chance.uniform(0.5, 5.0), self.start_web)
            await self.loop.create_future()
        if self.lost_answers and self.chance.random() < self.lost_answers:
            raise OperationalError("simulated: the connection was lost before the answer")
        return result

    def refuse_write(self, statement: str) -> None:
        """A full disk under the database; and what a process that was killed would have written in a `finally`."""
        if self._dying:
            raise Died
        if self.database_full and statement.startswith(("INSERT", "UPDATE", "DELETE")):
            raise sqlite3.OperationalError("database or disk is full")
        if statement.startswith(("INSERT", "UPDATE", "DELETE")) and not statement.startswith(OF_NO_CONCERN):
            self.changes += 1

    def publish(self, channel: str, payload: list[int]) -> None:
        if self.bus_up and channel == doorbell.NODES_CHANNEL:
            self.after(0.005, self._wake, payload)

    def _wake(self, payload: list[int]) -> None:
        for pump in list(pump_module._pumps().values()):
            if self.web is not None and not self.web.dead:
                pump._wake(payload)

    def queue_reconcile(self) -> None:
        if self.bus_up and self._rung is not None:
            self._rung.set()

    def wishes(self, *, unsettled_only: bool = False) -> Any:
        old = self._old_wishes.get(unsettled_only)
        if self._read_at.get(unsettled_only) == self.changes:
            return old  # nothing has been written since: a third of the ticks
        fresh = self._load(unsettled_only=unsettled_only)
        self._read_at[unsettled_only] = self.changes
        if unsettled_only and self.chance.random() < LOOKED_INTO:
            left_out = unsettled(self._load()) - (fresh.scope or set())
            assert not left_out, f"a tick that hurries has left out models {left_out}"
        self._old_wishes[unsettled_only] = fresh
        if old is not None and self.chance.random() < self.stale_share:
            return old
        return fresh

    def do(self, action: Any, now: Any) -> bool:
        done = self._really_do(action, now)
        if done and isinstance(action, StopShard) and _is_drained(action.shard):
            self.drained.add(action.shard)
        if self.crash_share and self.chance.random() < self.crash_share * 4:
            self._dying = True
            raise Died
        return done

    def ready(self, endpoint: str, readiness: Any, **_: Any) -> Probed:
        engine = self.kernel.at(int(endpoint.rpartition(":")[2]))
        serves = engine is not None and self.kernel.healthy(engine)
        return Probed() if serves else Probed(miss=Miss.SILENT, told="/health: silence")

    def figures(self, endpoint: str, **_: Any) -> SimpleNamespace:
        engine = self.kernel.at(int(endpoint.rpartition(":")[2]))
        return SimpleNamespace(running=engine.requests if engine else None, waiting=0, moving=None, refused=False)

    # -- wishes ------------------------------------------------------------------------------------------------------

    def wish(self, name: str, *, replicas: int, cards: int, revision: int, nodes: int, **profile: Any) -> None:
        """`cards` over all `nodes`; `profile`: what differs from the usual one."""
        kind = {"engine": "echo", "gpus": cards}
        if nodes > 1:
            kind = {"engine": "vllm", "model": "/models/m", "tensor_parallel": cards, "nodes": nodes, "nvlink": "off"}
        profile = {
            **kind,
            "gpu_class": [GPU_CLASS],
            "env": {"REVISION": str(revision)},
            "start_timeout_seconds": 20,
            "drain_timeout_seconds": 3,
            "stop_grace_seconds": 2,
            **profile,
        }
        self.note(f"wish: {replicas} x {name} on {cards} cards of {nodes} nodes, revision {revision}")
        entry = parse_entry({"name": name, "replicas": replicas, "profile": profile})
        catalog.save_entry(entry, actor="simulation")

    # -- the run -----------------------------------------------------------------------------------------------------

    def run(self, story: Callable[["World"], Any]) -> None:
        """Run one story to its end; what it broke is raised."""
        with patched(self):
            asyncio.set_event_loop(self.loop)
            try:
                self.loop.run_until_complete(story(self))
            finally:
                self._end()
                asyncio.set_event_loop(None)

    def _end(self) -> None:
        """Unwind what still waits, with the world standing still: nothing of it changes anything any more."""
        self.over = True
        self.loop.set_exception_handler(lambda loop, context: None)
        for process in self.processes:
            process.dead = False
            self.loop.go_on(process)
            for call in process.dropped:
                self.loop.call_soon(call)
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=600))
        self.loop.close()

    async def sleep(self, seconds: float) -> None:
        """Time passes; what must always hold is looked at again and again."""
        until = self.loop.time() + seconds
        while self.loop.time() < until:
            await asyncio.sleep(min(0.25, until - self.loop.time()))
            for check in self.checks:
                check()
            if self.loop.errors:
                raise self.loop.errors[0].get("exception") or AssertionError(self.loop.errors[0]["message"])


def _is_drained(shard: int) -> bool:
    """Whether it, or another rank of its replica, is on a node that is drained."""
    return Node.objects.filter(shards__replica__shards=shard, drain_deadline_at__isnull=False).exists()


@contextlib.contextmanager
def world(seed: int, *, nodes: int = 0, cards: int = 4, fleet: Mapping[str, Any] = QUICK) -> Iterator[World]:
    """A world on an empty database. `nodes`: 0 for three or four. `fleet`: what differs from the settings' defaults."""
    from django.apps import apps

    with connection.constraint_checks_disabled():
        for model in apps.get_app_config("fleet").get_models():
            model._base_manager.all()._raw_delete(connection.alias)
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM sqlite_sequence")  # keys too begin anew: some sets are in their order
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        made = World(seed, nodes=nodes or 3 + seed % 2, cards=cards, folder=Path(folder), fleet=fleet)
        try:
            yield made
        finally:
            made.kernel.close()
