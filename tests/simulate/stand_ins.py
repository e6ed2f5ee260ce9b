"""Everything that the simulation stands in for, by name: clocks, sockets, kernels, hardware, chance."""

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from django.conf import settings
from django.db import connections
from django.db.backends.signals import connection_created
from django.db.backends.sqlite3.base import SQLiteCursorWrapper

from agent_client.identity import save_identity
from agent_client.ledger import Ledger
from fleet.models import Node, Replica
from tests.simulate.loop import PROCESS
from tests.simulate.machine import Machine
from tests.simulate.statements import compiled_once

if TYPE_CHECKING:
    from tests.simulate.world import World

JOIN_SECRET = "simulated"
#: As llmgw_site.settings has them, whatever the environment of the test run says.
DEFAULTS = {
    "heartbeat_seconds": 10.0,
    "unreachable_after_seconds": 30.0,
    "lost_after_seconds": 300.0,
    "start_grace_seconds": 180.0,
    "brake_share": 0.4,
    "brake_nodes": 3,
    "loss_spacing_seconds": 10.0,
    "flap_damping_seconds": 60.0,
    "report_seconds": 180.0,
}
#: A tenth of the defaults, so that a schedule holds what matters of hours.
QUICK = {
    "heartbeat_seconds": 1.0,
    "unreachable_after_seconds": 4.0,
    "lost_after_seconds": 15.0,
    "start_grace_seconds": 5.0,
    "brake_share": 0.4,
    "brake_nodes": 3,
    "loss_spacing_seconds": 2.0,
    "flap_damping_seconds": 2.0,
    "report_seconds": 20.0,
}


@contextlib.contextmanager
def patched(world: "World") -> Iterator[None]:
    """Everything that the simulation stands in for, by name."""
    kernel, chance = world.kernel, world.chance
    time = SimpleNamespace(monotonic=world.loop.time)

    async def deaf(pump: Any) -> None:
        await asyncio.get_running_loop().create_future()

    def node() -> Machine:
        process = PROCESS.get()
        assert process is not None
        return process.node  # type: ignore[no-any-return]

    def on_its_disk(write: Callable[..., Any]) -> Callable[..., Any]:
        """What the agent writes: ledger, identity, the first byte of an engine's output."""

        def written(*given: Any, **more: Any) -> Any:
            if node().disk_full:
                raise OSError(28, "No space left on device")
            return write(*given, **more)

        return written

    def execute(cursor: Any, query: str, params: Any = None) -> Any:
        world.refuse_write(query)
        return really_execute(cursor, query, params)

    async def fetch(agent: Any, profile: Any, on_progress: Any) -> Any:
        return await world.fetch(agent, profile, on_progress) if world.fetch else profile

    def new_uuid() -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128), version=4)

    really_execute = SQLiteCursorWrapper.execute
    with ExitStack() as stack:
        for target, name, new in [
            ("django.utils.timezone", "now", world.wall_now),
            ("django.db.backends.sqlite3.base.SQLiteCursorWrapper", "execute", execute),
            ("fleet.agents.consumer", "time", time),
            ("fleet.agents.consumer", "in_database", world.in_database),
            ("fleet.agents.pump", "in_database", world.in_database),
            ("fleet.agents.pump.Pump", "_listen", deaf),
            ("fleet.doorbell", "_publish", world.publish),
            ("fleet.doorbell", "_queue_reconcile", world.queue_reconcile),
            ("fleet.services.reconciler", "load_wishes", world.wishes),
            ("fleet.services.reconciler", "_do", world.do),
            ("fleet.services.reconciler", "_carry_out", world.carry_out),
            ("agent_client.link", "connect", world.network.connect),
            ("agent_client.link", "time", time),
            ("agent_client.hardware.watch", "time", time),
            ("agent_client.app", "boot_id", lambda: node().boot_id),
            ("agent_client.app", "machine_id", lambda: node().machine_id),
            ("agent_client.app", "Discovery", lambda options: SimpleNamespace(look=node().inventory)),
            ("agent_client.app", "signal", SimpleNamespace(SIGTERM=15, SIGINT=2)),
            ("agent_client.preflight", "available_engines", lambda config: {"echo": "", "vllm": ""}),
            ("agent_client.preflight", "command_for", lambda config, kind: ()),
            ("agent_client.preflight", "check", lambda *args, **more: SimpleNamespace(refusal=None)),
            ("agent_client.preflight", "Ports", lambda *args, **more: SimpleNamespace(take=kernel.free_ports)),
            ("agent_client.probes", "ready", world.ready),
            ("agent_client.probes", "load", world.figures),
            ("agent_client.app.Agent", "_fetch", fetch),
            ("agent_client.ledger.Ledger", "_save", on_its_disk(Ledger._save)),
            ("agent_client.app", "hold_identity", lambda identity: SimpleNamespace(close=lambda: None)),  # all in one
            ("agent_client.app", "save_identity", on_its_disk(save_identity)),
            ("agent_client.supervisor.processes", "start_time", kernel.start_time),
            ("agent_client.supervisor.processes", "marked", kernel.marked),
            ("agent_client.supervisor.traces", "writers", lambda folder: {}),
            ("agent_client.supervisor.traces", "descendants", lambda pid: {}),
            ("agent_client.supervisor.processes", "signal_all", kernel.signal_all),
            ("agent_client.supervisor.processes", "signal_group", kernel.signal_group),
            (
                "agent_client.supervisor.attempt",
                "subprocess",
                SimpleNamespace(Popen=on_its_disk(kernel.popen), DEVNULL=-3),
            ),
            ("agent_client.supervisor", "time", time),
            ("agent_client.supervisor.engine", "time", time),
            ("agent_client.app", "oom_killed", lambda pids: False),
            ("agent_client.app", "own_cgroups", lambda mark: None),
            ("agent_client.supervisor.processes", "shared_memory", lambda pids: set()),
            ("agent_client.supervisor.processes", "variable", kernel.variable),
            ("platform", "platform", lambda: "simulated"),
            ("os", "pidfd_open", kernel.pidfd_open),
            ("os", "getpgid", lambda pid: pid),
            ("os", "fsync", lambda handle: None),
            ("secrets", "token_urlsafe", lambda size=32: f"{chance.getrandbits(size * 8):x}"),
        ]:
            stack.enter_context(patch(f"{target}.{name}", new))
        stack.enter_context(patch.dict(settings.FLEET, {**DEFAULTS, **world.fleet, "join_secret": JOIN_SECRET}))
        for model in (Node, Replica):
            stack.enter_context(_default(model._meta.get_field("uid"), new_uuid))
        stack.enter_context(_clock(world.database_now))
        stack.enter_context(_quiet())
        stack.enter_context(compiled_once())
        random.seed(world.seed)
        yield


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
    """SQLite's own clock, which is all that judges liveness: on each connection, since a loop has its own."""
    made = []

    def set_clock(connection: Any, **_: Any) -> None:
        _tell_time(connection, now)
        made.append(connection)

    connection_created.connect(set_clock)
    for each in connections.all(initialized_only=True):
        if each.connection is not None:
            set_clock(each)
    try:
        yield
    finally:
        connection_created.disconnect(set_clock)
        for each in made:
            if each.connection is not None:
                # SQLite's own function can't be had back: taken away, ours would leave one that fails.
                _tell_time(each, lambda: datetime.now(UTC))


def _tell_time(connection: Any, now: Callable[[], datetime]) -> None:
    connection.connection.create_function("strftime", 2, lambda text, what: now().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
