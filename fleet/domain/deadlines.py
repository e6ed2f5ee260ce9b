"""What takes too long: a phase without progress, and an engine with work inside that gives no token.

Only fresh facts are judged: of a silent node nothing is known, and what an agent enforces itself has some slack here.
All times are of the database's clock, and count from when something began to listen to it without a gap: progress that
nobody could hear is not missing, and a clock that jumps makes nothing late.
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
    replica: ReplicaView, profile: Profile | None, clock: datetime, *, heard_since: datetime, hung_after: timedelta
) -> GiveUpShard | None:
    """The first shard of the newest attempt to be given up."""
    for shard in replica.shards:
        if shard.epoch != replica.attempt or not shard.wanted or not shard.node_ready:
            continue
        heard_for = clock - heard_since
        found = _phase(replica, shard, profile, clock, heard_for) or _hung(replica, shard, clock, heard_for, hung_after)
        if found:
            return found
    return None


def _phase(
    replica: ReplicaView, shard: ShardView, profile: Profile | None, clock: datetime, heard_for: timedelta
) -> GiveUpShard | None:
    limit = PHASES.get(shard.state)
    if shard.state is ShardState.LOADING and profile is not None:
        limit = timedelta(seconds=profile.start_timeout_seconds) + LOADING_SLACK
    if limit is None or shard.moved_at is None:
        return None
    for_ = min(clock - shard.moved_at, heard_for)
    if for_ < limit:
        return None
    reason = f"{replica.label} rank {shard.rank} has been {shard.state} for {for_.total_seconds():.0f} s"
    return GiveUpShard(shard=shard.pk, code=FailureCode.START_TIMEOUT.value, reason=f"{reason} without progress")


def _hung(
    replica: ReplicaView, shard: ShardView, clock: datetime, heard_for: timedelta, hung_after: timedelta
) -> GiveUpShard | None:
    """Requests are inside and no token comes. A token that a router has seen since is proof of life.

    An engine that does not even tell how many requests it has is judged only with a router's word beside it.
    """
    if shard.state not in (ShardState.READY, ShardState.DRAINING) or shard.rank != 0 or shard.stalled_at is None:
        return None
    for_ = min(clock - shard.stalled_at, heard_for)
    if for_ < hung_after:
        return None
    flow = replica.flow
    if flow is not None and clock - flow.moved_at < hung_after:
        return None
    if shard.running is None and (flow is None or not flow.in_flight):
        return None
    inside = shard.running if shard.running is not None else flow.in_flight if flow else 0
    reason = f"{replica.label} hangs: {inside} requests are in the engine and no token has come for"
    return GiveUpShard(shard=shard.pk, code=FailureCode.HUNG.value, reason=f"{reason} {for_.total_seconds():.0f} s")
