"""Streams of one agent that overlap, frame by frame, through the real consumer: the newest session alone is heard.

Each schedule merges the frames of two or three connections at random, each connection's own order kept: the network may
hold the old one's back for as long as it likes, and nothing tells the server that it has ended.
"""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from agent_client.protocol.codec import decode, encode
from agent_client.protocol.messages import (
    FROM_SERVER,
    SUBPROTOCOL,
    Ack,
    Checked,
    Goodbye,
    Heartbeat,
    Message,
    Ping,
    Pong,
    Register,
    Registered,
    Report,
    ShardReport,
    ShardStatus,
)
from agent_client.protocol.states import ShardState
from fleet.agents import consumer as module
from fleet.agents.pump import Pump
from fleet.domain.states import CheckState, CommandState, NodeStatus
from fleet.models import AgentSession, Command, DryCheck, Event, Gpu, Node, Replica, Shard
from fleet.models.rollouts import Rollout
from fleet.services import heartbeats
from fleet.services.commands import wire_name
from fleet.services.nodes import Admission
from tests.fleet.test_reconciler import gpu, model, ready_node, tick
from tests.simulate.statements import compiled_once

pytestmark = pytest.mark.django_db(transaction=True)  # a loop has a connection of its own

HEARD = ("pong", "beat", "report", "status", "ack", "checked", "repeat")  # in any order once it is registered
ENDS = ("goodbye", "drop", "silence")
ENDPOINT = "http://127.0.0.1:20000"


class Listener:
    """One process of the control plane that takes streams; what it would do by its own clock is asked for instead."""

    def __init__(self, name: str) -> None:
        self.pump = Pump.__new__(Pump)
        self.pump.beats, self.pump._consumers, self.pump._dirty = {}, {}, set()
        self.pump._look = asyncio.Event()
        self.name, self.flushed = name, False

    def flush(self) -> None:
        beats, self.pump.beats = self.pump.beats, {}
        heartbeats.flush(listener=self.name, first=not self.flushed, beats=beats)
        self.flushed = True


class Connection:
    """The agent's end of one stream."""

    def __init__(self, number: int, listener: Listener) -> None:
        self.number, self.listener = number, listener
        self.sent = self.repeated = 0
        self.session: int | None = None  # its number, once it is registered
        self.pings: list[int] = []
        self.over = False
        self._to_server: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._idle = asyncio.Event()
        headers = [(b"authorization", b"Bearer test-join-secret")]
        scope = {"client": ("127.0.0.1", 1), "headers": headers, "subprotocols": [SUBPROTOCOL]}
        self._to_server.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(module.AgentConsumer()(scope, self._receive, self._send))
        self.task.add_done_callback(lambda task: self._idle.set())

    async def _receive(self) -> dict[str, Any]:
        if self._to_server.empty():
            self._idle.set()
        return await self._to_server.get()

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "websocket.close":
            self.over = True
        if message["type"] != "websocket.send":
            return
        told = decode(message["text"], accept=FROM_SERVER)[0]
        if isinstance(told, Registered):
            self.session = told.session
        elif isinstance(told, Ping):
            self.pings.append(told.number)

    async def say(self, message: Message, *, again: bool = False) -> None:
        self.sent += not again
        await self._put({"type": "websocket.receive", "text": encode(message, seq=self.sent)})

    async def drop(self) -> None:
        self.over = True
        await self._put({"type": "websocket.disconnect", "code": 1006})

    async def _put(self, item: dict[str, Any]) -> None:
        self._idle.clear()
        self._to_server.put_nowait(item)
        if not self.task.done():
            await self._idle.wait()


class Agent:
    """One agent process that dials again and again, and what the server must make of what it says."""

    def __init__(self, node: Admission, shard: Shard, chance: random.Random) -> None:
        self.node, self.shard, self.chance = node, shard, chance
        self.newest: Connection | None = None
        self.figure = 0  # each thing that is told is told with a figure of its own

    def report(self, state: ShardState, **fields: Any) -> ShardReport:
        self.figure += 1
        return ShardReport(
            shard=wire_name(self.shard), epoch=1, state=state, endpoint=ENDPOINT, running=self.figure, **fields
        )

    def register(self) -> Register:
        return Register(
            protocol=1,
            agent_version="0.1.0",
            node_id="gpu-01",
            machine_id="machine-gpu-01",
            boot_id="boot-1",
            instance_id="i",
            hostname="gpu-01",
            mgmt_addr="127.0.0.1",
            node_uid=self.node.node_uid,
            credential=self.node.credential,
            inventory={"gpus": [gpu(0), gpu(1)]},
            engines={"vllm": ""},
            shards=(self.report(ShardState.READY),),
        )

    async def do(self, what: str, connection: Connection) -> None:
        """One frame arrives; then what the database has of it is looked at."""
        if connection.over:
            return  # nobody reads it any more
        if what == "register":
            return await self._take_over(connection)
        before = picture()
        if connection is self.newest:
            await self._hear(what, connection)
        else:
            await self._late(what, connection)
            assert picture() == before, f"a late {what} of connection {connection.number}"
        assert Node.objects.get().session_id == (self.newest.session if self.newest else self.node.session_id)

    async def _take_over(self, connection: Connection) -> None:
        await connection.say(self.register())
        self.newest = connection
        node = Node.objects.get()
        assert (node.session_id, node.connected) == (connection.session, True)
        assert Shard.objects.get().running == self.figure
        assert AgentSession.objects.filter(closed_at__isnull=True).count() == 1

    async def _hear(self, what: str, connection: Connection) -> None:
        """Of the newest session everything counts, and at once."""
        state = self.chance.choice((ShardState.READY, ShardState.LOADING))
        match what:
            case "pong":
                for number in connection.pings:
                    await connection.say(Pong(number=number))
                connection.pings.clear()
                assert Node.objects.get().status == NodeStatus.READY
            case "beat":
                self.figure += 1
                await connection.say(Heartbeat(desired_revision=self.figure))
                connection.listener.flush()
                assert Node.objects.get().applied_revision == self.figure
            case "report" | "status":
                told = self.report(state)
                await connection.say(Report(shards=(told,)) if what == "report" else ShardStatus(report=told))
                shard = Shard.objects.get()
                assert (shard.running, shard.state) == (self.figure, state)
            case "ack":
                await connection.say(Ack(command=Command.objects.get().pk))
                assert Command.objects.get().state == CommandState.DONE
            case "checked":
                await connection.say(Checked(check=DryCheck.objects.get().pk))
                assert DryCheck.objects.get().state == CheckState.PASSED
            case "repeat":
                before = picture()
                await connection.say(ShardStatus(report=self.report(ShardState.FAILED)), again=True)
                assert picture() == before  # its number was passed
            case "goodbye" | "drop":
                await (connection.drop() if what == "drop" else connection.say(Goodbye(reason="test")))
                assert not Node.objects.get().connected

    async def _late(self, what: str, connection: Connection) -> None:
        """Of an older one, or of one that never came through: the worst that it can say."""
        match what:
            case "pong":
                for number in connection.pings:
                    await connection.say(Pong(number=number))
            case "beat":
                await connection.say(Heartbeat(desired_revision=9999))
                connection.listener.flush()
            case "report":
                lost = Report(shards=(), inventory={"gpus": []}, engines={})
                await connection.say(self.chance.choice((lost, Report(shards=(self.report(ShardState.FAILED),)))))
            case "status":
                await connection.say(ShardStatus(report=self.report(self.chance.choice(list(ShardState)))))
            case "ack":
                refused = Ack(command=Command.objects.get().pk, accepted=False, code="policy_refused", detail="late")
                await connection.say(self.chance.choice((refused, Ack(command=refused.command))))
            case "checked":
                await connection.say(Checked(check=DryCheck.objects.get().pk, code="policy_refused", detail="late"))
            case "repeat":
                await connection.say(ShardStatus(report=self.report(ShardState.FAILED)), again=True)
            case "goodbye":
                await connection.say(Goodbye(reason="late"))
            case "drop":
                await connection.drop()


def picture() -> Any:
    """All that is known of the node and of what runs there. Listeners and sessions keep times of their own."""
    found = []
    with connection.cursor() as cursor:  # without making objects of it, thousands of times
        for kind in (Node, Gpu, Shard, Replica, Command, DryCheck, Event):
            cursor.execute(f"SELECT * FROM {kind._meta.db_table} ORDER BY id")
            found.append(cursor.fetchall())
    return found


def frames(chance: random.Random) -> list[str]:
    """What one connection carries in its life."""
    heard = ["register", *chance.choices(HEARD, k=chance.randint(1, 6)), chance.choice(ENDS)]
    return heard if chance.random() < 0.9 else heard[:1]  # it broke at once


def merged(lives: list[list[str]], chance: random.Random) -> Iterator[tuple[int, str]]:
    order = [number for number, life in enumerate(lives) for _ in life]
    chance.shuffle(order)
    left = [iter(life) for life in lives]
    for number in order:
        yield number, next(left[number])


async def run_schedule(agent: Agent, listeners: list[Listener], patched: dict[str, Any]) -> None:
    chance = agent.chance
    lives = [frames(chance) for _ in range(chance.choice((2, 2, 3)))]
    connections: dict[int, Connection] = {}
    try:
        for number, what in merged(lives, chance):
            if number not in connections:
                connections[number] = Connection(number, chance.choice(listeners))
            patched["listener"] = connections[number].listener
            await agent.do(what, connections[number])
        # Whatever has happened: the agent dials once more, and all is as it says.
        last = connections[len(lives)] = Connection(len(lives), listeners[0])
        patched["listener"] = listeners[0]
        await agent.do("register", last)
        await agent.do("status", last)
    finally:
        for connection in connections.values():
            connection.task.cancel()
        ends = await asyncio.gather(*(each.task for each in connections.values()), return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError | None) for end in ends), ends
    assert Node.objects.get().status == NodeStatus.READY
    assert Replica.objects.get().attempt == 1


@pytest.mark.parametrize(
    ("schedules", "seed"),
    [
        (15, 1),
        pytest.param(335, 2, marks=pytest.mark.heavy),
        *(
            pytest.param(1000, seed, marks=[pytest.mark.long, pytest.mark.timeout(300)], id=f"1000 from seed {seed}")
            for seed in range(3, 13)
        ),
    ],
)
async def test_of_all_sessions_of_one_agent_the_newest_alone_is_heard(
    monkeypatch: pytest.MonkeyPatch, schedules: int, seed: int
) -> None:
    """Failures 7: it reconnects before the server saw the drop; 10,000 interleavings with script/test --long."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    patched: dict[str, Any] = {}

    async def in_database(function: Any, *args: Any, **more: Any) -> Any:
        return function(*args, **more)

    monkeypatch.setattr(module, "in_database", in_database)
    monkeypatch.setattr(module, "pump", lambda: patched["listener"].pump)
    # Each task has this connection, which is in their context.
    with compiled_once(), transaction.atomic():
        node = ready_node()
        model()
        tick()
        shard = Shard.objects.get()
        rollout = Rollout.objects.create(model=shard.replica.model, origin=1, target=2)
        DryCheck.objects.create(rollout=rollout, node_id=node.node_id, spec={})
        for number in range(schedules):
            with transaction.atomic():
                agent = Agent(node, shard, random.Random(f"{seed}/{number}"))
                try:
                    await run_schedule(agent, [Listener("web-1"), Listener("web-2")], patched)
                except AssertionError as error:
                    raise AssertionError(f"schedule {number} of seed {seed}: {error}") from error
                transaction.set_rollback(True)
        transaction.set_rollback(True)
    connection.close()
