"""Ending gently: nothing new comes in, what is inside may finish until a deadline, then it stops.

The head alone serves, so it alone drains; the other ranks are stopped once it has ended.
"""

from datetime import datetime, timedelta

from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet.domain.actions import Action, DrainShard, StopShard
from fleet.domain.types import ReplicaView, ShardView

#: The agent keeps the deadline; if nothing has ended this long after it, the shard is stopped by order.
SLACK = timedelta(seconds=30)

SERVING = frozenset({ShardState.READY, ShardState.DRAINING})


def live(replica: ReplicaView) -> list[ShardView]:
    return [shard for shard in replica.shards if shard.state not in ENDED_SHARD_STATES]


def stop(shards: list[ShardView], reason: str, *, drained: bool = False) -> list[Action]:
    """Stop what is still wanted; a repeated call does nothing. `drained`: it is the drain of a node that asks."""
    return [StopShard(shard=shard.pk, reason=reason, drained=drained) for shard in shards if shard.wanted]


def wind_down(replica: ReplicaView, now: datetime, *, until: datetime, reason: str) -> list[Action]:
    """One step of ending a replica by `until`; nothing while a drain is under way."""
    shards = live(replica)
    head = next((shard for shard in shards if shard.rank == 0 and shard.epoch == replica.attempt), None)
    if head is None or not head.wanted or head.state not in SERVING:
        return stop(shards, reason)
    older = stop([shard for shard in shards if shard.epoch != replica.attempt], reason)
    if until <= now:
        return stop(shards, reason)
    if not head.draining:
        return [*older, DrainShard(shard=head.pk, deadline_at=until, reason=reason)]
    if head.drain_deadline_at is None or head.drain_deadline_at + SLACK <= now:
        return stop(shards, f"{reason}; its drain is over")
    return older
