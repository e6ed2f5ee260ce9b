"""One per process: reads the database for all nodes whose streams this process holds, and hands consumers their orders.

A doorbell (Redis pub/sub) wakes it within milliseconds; losing the doorbell costs at most one poll of 3 s. It also
flushes the coalesced heartbeats once a second.
"""

import asyncio
import json
import logging
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import redis.asyncio
from django.conf import settings

from agent_client.protocol.messages import Check, Drain, Start, Stop
from fleet import doorbell
from fleet.agents.database import AWAY, in_database
from fleet.domain.states import CheckState, CommandState
from fleet.models import Command, DryCheck, Node
from fleet.services import heartbeats
from fleet.services.commands import message_for
from fleet.services.rollouts import check_message

if TYPE_CHECKING:
    from fleet.agents.consumer import AgentConsumer

log = logging.getLogger(__name__)

POLL_SECONDS = 3.0
DEBOUNCE_SECONDS = 0.02
FLUSH_SECONDS = 1.0
#: The fleet sends at most this many heartbeats a second (DESIGN.md section 3).
HEARTBEATS_PER_SECOND = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    key: str  # of the row that it delivers
    message: Start | Stop | Drain | Check


class Pump:
    def __init__(self) -> None:
        self.beats: dict[int, heartbeats.Beat] = {}
        self._consumers: dict[int, AgentConsumer] = {}
        self._dirty: set[int] = set()
        self._look = asyncio.Event()
        self._listener = f"{socket.gethostname()}:{os.getpid()}"
        # References are kept: an unreferenced task is collected and wake-ups stop silently.
        self._tasks = [asyncio.create_task(loop()) for loop in (self._listen, self._deliver, self._flush)]

    # -- consumers ----------------------------------------------------------------------------------------------------

    async def add(self, consumer: "AgentConsumer") -> None:
        old = self._consumers.get(consumer.admission.node_id)
        self._consumers[consumer.admission.node_id] = consumer
        self.beats[consumer.admission.session_id] = heartbeats.Beat(desired_revision=0, inventory_stale_seconds=None)
        if old is not None and old is not consumer:
            await old.supersede("a newer stream of this node took over")
        self._wake([consumer.admission.node_id])

    def remove(self, consumer: "AgentConsumer") -> None:
        self.beats.pop(consumer.admission.session_id, None)
        if self._consumers.get(consumer.admission.node_id) is consumer:
            del self._consumers[consumer.admission.node_id]

    def heartbeat_seconds(self, wished: float) -> float:
        return max(wished, len(self._consumers) / HEARTBEATS_PER_SECOND)

    def reconnect_spread_seconds(self) -> float:
        """max(5 s, N/100 s): 5,000 reconnects at 1.5 ms of CPU each stay below a fifth of a core."""
        return max(5.0, len(self._consumers) / 100)

    # -- wake-ups -----------------------------------------------------------------------------------------------------

    def _wake(self, node_ids: Iterable[int]) -> None:
        self._dirty.update(node_ids)
        self._look.set()

    async def _listen(self) -> None:
        pause = 0.5
        while True:
            try:
                client = redis.asyncio.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=2)
                async with client, client.pubsub() as subscription:
                    await subscription.subscribe(doorbell.NODES_CHANNEL)
                    pause = 0.5
                    self._wake(self._consumers)  # what rang while nobody listened
                    async for message in subscription.listen():
                        if message["type"] == "message":
                            self._wake(json.loads(message["data"]))
            except (redis.RedisError, OSError, ValueError) as error:
                log.warning("pump.deaf error=%s retry=%.1f", type(error).__name__, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)

    # -- orders -------------------------------------------------------------------------------------------------------

    async def _deliver(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._look.wait(), POLL_SECONDS)
                await asyncio.sleep(DEBOUNCE_SECONDS)
                node_ids = self._dirty & self._consumers.keys()
            except TimeoutError:
                node_ids = set(self._consumers)
            self._look.clear()
            self._dirty.clear()
            if not node_ids:
                continue
            try:
                await self._deliver_to(node_ids)
            except AWAY as error:
                log.warning("pump.database_away error=%s", type(error).__name__)
                await asyncio.sleep(1.0)
            except Exception:
                log.exception("pump.failed")

    async def _deliver_to(self, node_ids: set[int]) -> None:
        # A stream may be replaced while the database is read: the newer one must not be judged by the older truth.
        consumers = {node_id: self._consumers.get(node_id) for node_id in node_ids}
        orders, sessions = await in_database(_read, node_ids)
        for node_id, consumer in consumers.items():
            if consumer is None or self._consumers.get(node_id) is not consumer:
                continue
            if sessions.get(node_id) != consumer.admission.session_id:
                gone = "the node was deleted" if node_id not in sessions else "another stream speaks for this node"
                await consumer.supersede(f"{gone}; register again")
            else:
                await consumer.deliver(orders.get(node_id, []))

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    async def _flush(self) -> None:
        # A session's lease is renewed only by what it sent: the buffer is emptied at each flush.
        first = True
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            beats, self.beats = self.beats, {}
            try:
                refresh = await in_database(heartbeats.flush, listener=self._listener, first=first, beats=beats)
                first = False
            except AWAY as error:
                self.beats = beats | self.beats
                log.warning("pump.heartbeats_kept count=%d error=%s", len(beats), type(error).__name__)
                continue
            except Exception:
                log.exception("pump.flush_failed")
                continue
            for consumer in list(self._consumers.values()):
                if consumer.admission.session_id in refresh:
                    await consumer.refresh()


def _read(node_ids: set[int]) -> tuple[dict[int, list[Delivery]], dict[int, int]]:
    """Open orders and current sessions of these nodes, in three queries and one per start order."""
    rows_of_nodes = Node.objects.filter(pk__in=node_ids).values_list("pk", "session_id")
    sessions = {pk: session_id or 0 for pk, session_id in rows_of_nodes}
    rows = (
        Command.objects.filter(node_id__in=node_ids, state=CommandState.OPEN)
        .select_related("shard__replica__model", "shard__replica__revision")
        .order_by("pk")
    )
    orders: dict[int, list[Delivery]] = {}
    for command in rows:
        delivery = Delivery(key=f"command-{command.pk}", message=message_for(command))
        orders.setdefault(command.node_id, []).append(delivery)
    for check in DryCheck.objects.filter(node_id__in=node_ids, state=CheckState.OPEN).order_by("pk"):
        delivery = Delivery(key=f"check-{check.pk}", message=check_message(check))
        orders.setdefault(check.node_id, []).append(delivery)
    return orders, sessions


@cache
def _pumps() -> dict[Any, Pump]:
    return {}


def pump() -> Pump:
    """The pump of this process's event loop; made at its first use."""
    loop = asyncio.get_running_loop()
    pumps = _pumps()
    if loop not in pumps:
        pumps[loop] = Pump()
    return pumps[loop]
