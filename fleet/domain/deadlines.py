"""What takes too long: a phase without progress, and an engine with work inside that gives no token.

Only fresh facts are judged: of a silent node nothing is known, and what an agent enforces itself has some slack here.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from agent_client.profile import Profile
from agent_client.protocol.states import FailureCode, ShardState
from fleet.domain.actions import GiveUpShard
from fleet.domain.types import ReplicaView, ShardView

#: Before an engine runs. Checks read model files, which may lie on a slow disk.
PHASES: Mapping[ShardState, timedelta] = {
    ShardState.ASSIGNED: timedelta(minutes=2),
    ShardState.VALIDATING: timedelta(minutes=5),
    ShardState.LAUNCHING: timedelta(minutes=2),
}
#: On top of the profile's start_timeout_seconds, which the agent keeps.
LOADING_SLACK = timedelta(seconds=60)


def overdue(
    replica: ReplicaView, profile: Profile | None, now: datetime, *, hung_after: timedelta
) -> GiveUpShard | None:
    """The first shard of the newest attempt to be given up."""
    for shard in replica.shards:
        if shard.epoch != replica.attempt or not shard.wanted or not shard.node_ready:
            continue
        found = _phase(replica, shard, profile, now) or _hung(replica, shard, now, hung_after)
        if found:
            return found
    return None


def _phase(replica: ReplicaView, shard: ShardView, profile: Profile | None, now: datetime) -> GiveUpShard | None:
    limit = PHASES.get(shard.state)
    if shard.state is ShardState.LOADING and profile is not None:
        limit = timedelta(seconds=profile.start_timeout_seconds) + LOADING_SLACK
    if limit is None or shard.moved_at is None or now - shard.moved_at < limit:
        return None
    for_ = (now - shard.moved_at).total_seconds()
    reason = f"{replica.label} rank {shard.rank} has been {shard.state} for {for_:.0f} s without progress"
    return GiveUpShard(shard=shard.pk, code=FailureCode.START_TIMEOUT.value, reason=reason)


def _hung(replica: ReplicaView, shard: ShardView, now: datetime, hung_after: timedelta) -> GiveUpShard | None:
    """Requests are inside and no token comes. A token that a router has seen since is proof of life.

    An engine that does not even tell how many requests it has is judged only with a router's word beside it.
    """
    if shard.state not in (ShardState.READY, ShardState.DRAINING) or shard.rank != 0 or shard.stalled_at is None:
        return None
    if now - shard.stalled_at < hung_after:
        return None
    flow = replica.flow
    if flow is not None and now - flow.moved_at < hung_after:
        return None
    if shard.running is None and (flow is None or not flow.in_flight):
        return None
    inside = shard.running if shard.running is not None else flow.in_flight if flow else 0
    seconds = (now - shard.stalled_at).total_seconds()
    reason = f"{replica.label} hangs: {inside} requests are in the engine and no token has come for {seconds:.0f} s"
    return GiveUpShard(shard=shard.pk, code=FailureCode.HUNG.value, reason=reason)
