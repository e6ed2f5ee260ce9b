"""The whole house in one thread: the real agent, session, consumer, services, reconciler and placement.

Simulated are the clock, the network, the machines' kernels and hardware, and the database's clock; a seed decides
everything that is left to chance, so a seed replays exactly.
"""

import asyncio
import contextlib
import logging
import random
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from django.conf import settings
from django.db import OperationalError, connection

from agent_client.app import Agent
from agent_client.config import AgentConfig
from agent_client.hardware import Inventory
from agent_client.profile import parse_entry
from fleet import doorbell
from fleet.agents import pump as pump_module
from fleet.agents.consumer import AgentConsumer
from fleet.models import Node, Replica
from fleet.services import catalog, liveness, reconciler
from tests.simulate.kernel import Kernel
from tests.simulate.loop import PROCESS, Process, VirtualLoop
from tests.simulate.network import Network

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
#: A tenth of the defaults, so that a schedule holds what matters of hours.
FLEET = {
    "heartbeat_seconds": 1.0,
    "unreachable_after_seconds": 4.0,
    "lost_after_seconds": 15.0,
    "start_grace_seconds": 5.0,
    "brake_share": 0.4,
    "brake_nodes": 3,
    "loss_spacing_seconds": 2.0,
    "report_seconds": 20.0,
    "join_secret": "simulated",
    "insecure_agents": False,
}
RECONCILE_SECONDS = 2.0
JUDGE_SECONDS = 1.0
GPU_CLASS = "h100-sxm-80gb"


class Died(BaseException):
    """The process that runs this was killed in the middle."""


class Machine:
    """One node: its cards, its boot, and what is wrong with it."""

    def __init__(self, name: str, cards: int, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.uuids = [f"GPU-{name}-{index}" for index in range(cards)]
        self.sick: set[str] = set()
        self.boots = 0
        self.agent: Process | None = None
        self.disk_full = False

    @property
    def boot_id(self) -> str:
        return f"boot-{self.name}-{self.boots}"

    def inventory(self) -> Inventory:
        gpus = []
        for index, card in enumerate(self.uuids):
            lost = {"code": "lost", "severity": "unplaceable", "text": "fell off the bus", "hint": ""}
            gpus.append(
                {
                    "index": index,
                    "uuid": card,
                    "name": "NVIDIA H100 80GB HBM3",
                    "class": GPU_CLASS,
                    "bus": f"0000:{index:02x}:00.0",
                    "memory_total_mib": 81_559,
                    "memory_used_mib": 0,
                    "compute_capability": "9.0",
                    "numa": 0,
                    "domain": f"{self.name}-nvswitch",
                    "mig": None,
                    "placeable": card not in self.sick,
                    "shared_memory": False,
                    "processes": [],
                    "problems": [lost] if card in self.sick else [],
                }
            )
        return Inventory(
            data={"version": 1, "node_id": self.name, "source": "nvml", "gpus": gpus, "adapters": [_hca()]}
        )


def _hca() -> dict[str, Any]:
    port = {"port": 1, "state": "ACTIVE", "phys_state": "LinkUp", "rate_gbps": 400.0, "rate_name": "4X NDR"}
    port |= {"link_layer": "InfiniBand", "lid": 1, "sm_lid": 1, "gid_prefix": "fe80::", "gid_index": 0}
    port |= {"fabric": "ib", "problems": []}
    return {"hca": "mlx5_0", "numa": 0, "netdev": "ib0", "virtual": False, "bond": None, "ports": [port]}


class World:
    def __init__(self, seed: int, *, nodes: int, cards: int, folder: Path) -> None:
        self.seed = seed
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
        self.wall_offset = timedelta()
        self.crash_share = 0.0  # of the control plane's writes, after which its process is gone
        self.stale_share = 0.0  # of the reconciler's ticks, which decide on an old snapshot
        self.over = False
        self.processes: list[Process] = []
        self.checks: list[Callable[[], None]] = []
        self.log: list[str] = []
        self._rung: asyncio.Event | None = None
        self._old_wishes: Any = None

    def note(self, text: str) -> None:
        self.log.append(f"{self.loop.time() - 1000:7.2f} {text}")

    # -- clocks ------------------------------------------------------------------------------------------------------

    def database_now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.loop.time())

    def wall_now(self) -> datetime:
        return self.database_now() + self.wall_offset

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
            node_id=machine.name,
            mgmt_addr="127.0.0.1",
            state_dir=machine.folder,
            join_secret=FLEET["join_secret"],  # type: ignore[arg-type]
        )
        machine.folder.mkdir(exist_ok=True)
        await Agent(config).run(stop_engines=False)

    def kill_agent(self, machine: Machine) -> None:
        if machine.agent is not None and not machine.agent.dead:
            self.note(f"agent of {machine.name} is killed")
            machine.agent.dead = True
            for stream in [each for each in self.network.streams if each.node == machine.name]:
                stream.cut()

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
        number = 0
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._rung.wait(), RECONCILE_SECONDS)
            await asyncio.sleep(0.02)
            self._rung.clear()
            number += 1
            try:
                if not self.database_away:
                    reconciler.run(holder=f"worker-{id(self.worker)}-{number}", now=self.wall_now())
            except Died:
                self.kill_worker()
                self.loop.call_later(self.chance.uniform(0.5, 5.0), self.start_worker)
                await self.loop.create_future()

    async def _judge(self) -> None:
        while True:
            await asyncio.sleep(JUDGE_SECONDS)
            if not self.database_away:
                liveness.run(now=self.wall_now())

    # -- what stands in for I/O --------------------------------------------------------------------------------------

    async def _in_database(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0.001)
        if self.database_away or self.over:
            raise OperationalError("simulated")
        result = function(*args, **kwargs)
        if self.crash_share and self.chance.random() < self.crash_share:
            self.kill_web()
            self.loop.call_later(self.chance.uniform(0.5, 5.0), self.start_web)
            await self.loop.create_future()
        return result

    def _publish(self, channel: str, payload: list[int]) -> None:
        if self.bus_up and channel == doorbell.NODES_CHANNEL:
            self.loop.call_later(0.005, self._wake, payload)

    def _wake(self, payload: list[int]) -> None:
        for pump in list(pump_module._pumps().values()):
            if self.web is not None and not self.web.dead:
                pump._wake(payload)

    def _queue_reconcile(self) -> None:
        if self.bus_up and self._rung is not None:
            self._rung.set()

    def _wishes(self) -> Any:
        fresh = self._load()
        old, self._old_wishes = self._old_wishes, fresh
        if old is not None and self.chance.random() < self.stale_share:
            return old
        return fresh

    def _do(self, action: Any, now: Any) -> bool:
        done = self._really_do(action, now)
        if self.crash_share and self.chance.random() < self.crash_share * 4:
            raise Died
        return done

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """Everything that the simulation stands in for, by name."""
        kernel, chance = self.kernel, self.chance
        time = SimpleNamespace(monotonic=self.loop.time)
        self._load, self._really_do = reconciler.load_wishes, reconciler._do

        async def deaf(pump: Any) -> None:
            await asyncio.get_running_loop().create_future()

        def node() -> Machine:
            process = PROCESS.get()
            assert process is not None
            return process.node  # type: ignore[no-any-return]

        def full_disk(ledger: Any) -> None:
            if node().disk_full:
                raise OSError(28, "No space left on device")
            save(ledger)

        def new_uuid() -> uuid.UUID:
            return uuid.UUID(int=chance.getrandbits(128), version=4)

        from agent_client.ledger import Ledger

        save = Ledger._save
        with ExitStack() as stack:
            for target, name, new in [
                ("django.utils.timezone", "now", self.wall_now),
                ("fleet.agents.consumer", "time", time),
                ("fleet.agents.consumer", "in_database", self._in_database),
                ("fleet.agents.pump", "in_database", self._in_database),
                ("fleet.agents.pump.Pump", "_listen", deaf),
                ("fleet.doorbell", "_publish", self._publish),
                ("fleet.doorbell", "_queue_reconcile", self._queue_reconcile),
                ("fleet.services.reconciler", "load_wishes", self._wishes),
                ("fleet.services.reconciler", "_do", self._do),
                ("agent_client.link", "connect", self.network.connect),
                ("agent_client.link", "time", time),
                ("agent_client.app", "time", time),
                ("agent_client.app", "boot_id", lambda: node().boot_id),
                ("agent_client.app", "machine_id", lambda: f"machine-{node().name}"),
                ("agent_client.app", "Discovery", lambda options: SimpleNamespace(look=node().inventory)),
                ("agent_client.app", "signal", SimpleNamespace(SIGTERM=15, SIGINT=2)),
                ("agent_client.preflight", "available_engines", lambda config: {"echo": "", "vllm": ""}),
                ("agent_client.preflight", "command_for", lambda config, kind: ()),
                ("agent_client.preflight", "check", lambda *args: None),
                ("agent_client.preflight", "free_port", kernel.free_port),
                ("agent_client.probes", "ready", self._ready),
                ("agent_client.probes", "load", lambda endpoint, **_: SimpleNamespace(running=0, waiting=0)),
                ("agent_client.ledger.Ledger", "_save", full_disk),
                ("agent_client.supervisor.processes", "start_time", kernel.start_time),
                ("agent_client.supervisor.processes", "marked", kernel.marked),
                ("agent_client.supervisor.processes", "signal_all", kernel.signal_all),
                ("agent_client.supervisor.processes", "signal_group", kernel.signal_group),
                ("agent_client.supervisor.engine", "subprocess", SimpleNamespace(Popen=kernel.popen, DEVNULL=-3)),
                ("platform", "platform", lambda: "simulated"),
                ("os", "pidfd_open", kernel.pidfd_open),
                ("os", "getpgid", lambda pid: pid),
                ("os", "fsync", lambda handle: None),
                ("secrets", "token_urlsafe", lambda size=32: f"{chance.getrandbits(size * 8):x}"),
            ]:
                stack.enter_context(patch(f"{target}.{name}", new))
            stack.enter_context(patch.dict(settings.FLEET, FLEET))
            for model in (Node, Replica):
                stack.enter_context(_default(model._meta.get_field("uid"), new_uuid))
            stack.enter_context(_clock(self.database_now))
            stack.enter_context(_quiet())
            random.seed(self.seed)
            yield

    def _ready(self, endpoint: str, readiness: Any, **_: Any) -> bool:
        engine = self.kernel.at(int(endpoint.rpartition(":")[2]))
        return engine is not None and self.kernel.healthy(engine)

    # -- wishes ------------------------------------------------------------------------------------------------------

    def wish(self, name: str, *, replicas: int, cards: int, revision: int, nodes: int) -> None:
        """`cards` over all `nodes`."""
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
        }
        self.note(f"wish: {replicas} x {name} on {cards} cards of {nodes} nodes, revision {revision}")
        entry = parse_entry({"name": name, "replicas": replicas, "profile": profile})
        catalog.save_entry(entry, actor="simulation")

    # -- the run -----------------------------------------------------------------------------------------------------

    def run(self, story: Callable[["World"], Any]) -> None:
        """Run one story to its end; what it broke is raised."""
        with self.patched():
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


@contextlib.contextmanager
def _default(field: Any, new: Any) -> Iterator[None]:
    before = field.default
    field.default = new
    field.__dict__.pop("_get_default", None)
    try:
        yield
    finally:
        field.default = before
        field.__dict__.pop("_get_default", None)


@contextlib.contextmanager
def _clock(now: Callable[[], datetime]) -> Iterator[None]:
    """SQLite's own clock, which is all that judges liveness."""
    connection.ensure_connection()
    real = connection.connection
    real.create_function("strftime", 2, lambda text, what: now().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3])
    try:
        yield
    finally:
        real.create_function("strftime", 2, None)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def world(seed: int, *, nodes: int = 4, cards: int = 4) -> Iterator[World]:
    """A world on an empty database."""
    from django.apps import apps

    with connection.constraint_checks_disabled():
        for model in apps.get_app_config("fleet").get_models():
            model._base_manager.all()._raw_delete(connection.alias)
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM sqlite_sequence")  # keys too begin anew: some sets are in their order
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield World(seed, nodes=nodes, cards=cards, folder=Path(folder))
