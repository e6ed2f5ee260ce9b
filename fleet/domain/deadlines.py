"""What takes too long: a phase without progress, and a ready engine that gives neither answer nor token.

Only fresh facts are judged: of a silent node nothing is known, and what an agent enforces itself has some slack here.
All times are of the database's clock, and count from when something began to listen to it without a gap: progress that
nobody could hear is not missing, and a clock that jumps makes nothing late.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from agent_client.profile import Profile
from agent_client.protocol.states import FailureCode, ShardState
from fleet.domain.actions import GiveUpShard
from fleet.domain.ages import age
from fleet.domain.types import ReplicaView, ShardView

#: Before an engine runs. Checks read model files, which may lie on a slow disk.
PHASES: Mapping[ShardState, timedelta] = {
    ShardState.ASSIGNED: timedelta(minutes=2),
    ShardState.VALIDATING: timedelta(minutes=5),
    ShardState.LAUNCHING: timedelta(minutes=2),
}
#: On top of the profile's start_timeout_seconds, which the agent keeps: without a byte, or without a line.
LOADING_SLACK = timedelta(seconds=60)
#: Of a ready engine, also of one that is shown as loading because it does not answer any more.
OWING = (ShardState.READY, ShardState.LOADING, ShardState.DRAINING)
#: A router speaks every 10 s of what it has in flight.
FLOW_FRESH = timedelta(seconds=30)
#: Without any word of a router and without figures: it may be busy with one long answer to somebody else.
BLIND = timedelta(minutes=10)


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
    if profile is not None:
        by_profile = timedelta(seconds=profile.start_timeout_seconds) + LOADING_SLACK
        if shard.state is ShardState.LOADING:
            limit = by_profile
        elif shard.state is ShardState.VALIDATING and profile.from_hub:
            limit = max(PHASES[shard.state], by_profile)  # the model is fetched then
    if limit is None or shard.moved_at is None or shard.stalled_at is not None:
        return None
    for_ = _lasts(shard.moved_at, clock, heard_for)
    if for_ < limit:
        return None
    reason = f"{replica.label} rank {shard.rank} has been {shard.state} for {for_.total_seconds():.0f} s"
    return GiveUpShard(shard=shard.pk, code=FailureCode.START_TIMEOUT.value, reason=f"{reason} without progress")


def _lasts(since: datetime, clock: datetime, heard_for: timedelta) -> timedelta:
    """For how long it is known to be so; `since` a time that never came, all of the time in which it could be heard."""
    found = age(since, clock)
    return heard_for if found is None else min(found, heard_for)


def _hung(
    replica: ReplicaView, shard: ShardView, clock: datetime, heard_for: timedelta, hung_after: timedelta
) -> GiveUpShard | None:
    """The agent's word that it owes an answer and gives no sign of life, beside a router's that no token comes.

    A token that a router has seen since is proof of life, whatever health pages say. Without a router's word the agent
    alone decides where it sees the engine's figures; where it does not, long silence must do.
    """
    if shard.state not in OWING or shard.rank != 0 or shard.stalled_at is None:
        return None
    for_ = _lasts(shard.stalled_at, clock, heard_for)
    flow = replica.flow
    silent = None if flow is None else age(flow.moved_at, clock)
    if for_ < hung_after or (silent is not None and silent < hung_after):
        return None
    reason = f"{replica.label} hangs: no sign of life for {for_.total_seconds():.0f} s"
    told = None if flow is None else age(flow.seen_at, clock)
    if flow is not None and silent is not None and flow.in_flight and told is not None and told < FLOW_FRESH:
        reason += f", and no token for {silent.total_seconds():.0f} s with {flow.in_flight} requests in flight"
    elif for_ < BLIND:
        return None
    return GiveUpShard(shard=shard.pk, code=FailureCode.HUNG.value, reason=reason)
