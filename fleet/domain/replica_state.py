"""A replica's state as a function of facts, in both directions: its wish, its newest attempt's shards, its wait."""

from dataclasses import dataclass

from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet.domain.states import ReplicaState, ReplicaWish


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFact:
    rank: int
    state: ShardState
    wanted: bool
    draining: bool = False
    endpoint: str = ""
    code: str = ""
    reason: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    wish: ReplicaWish
    waiting: bool  # for its next try after a failure
    shards: tuple[ShardFact, ...]  # of the newest attempt; empty before the first
    explained: str = ""  # placement's refusal since the newest attempt, in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    state: ReplicaState
    code: str
    reason: str
    endpoint: str = ""


def compute(facts: ReplicaFacts) -> Computed:
    """The state and its sentence."""
    states = {shard.state for shard in facts.shards}
    live = [shard for shard in facts.shards if shard.state not in ENDED_SHARD_STATES]
    if facts.wish is not ReplicaWish.RUN:
        return _ending(facts, live)
    if ShardState.LOST in states:
        return _lost(facts)
    if ShardState.FAILED in states:
        return _failed(facts, live)
    if not live:
        return _pending(facts)
    if any(shard.draining or shard.state is ShardState.DRAINING for shard in live):
        return Computed(state=ReplicaState.DRAINING, code="draining", reason="draining", endpoint=_endpoint(live))
    wanted = all(shard.wanted for shard in live)  # one that is told to end gets nothing new from now on
    if wanted and len(live) == len(facts.shards) and states == {ShardState.READY} and _endpoint(live):
        return Computed(state=ReplicaState.READY, code="", reason="", endpoint=_endpoint(live))
    if any(not shard.wanted or shard.state in (ShardState.STOPPING, ShardState.STOP_STUCK) for shard in live):
        worst = next((s for s in live if s.state is ShardState.STOP_STUCK), live[0])
        return Computed(
            state=ReplicaState.DEGRADED,
            code="stopping_attempt",
            reason=worst.reason or f"the attempt on {worst.node} is being stopped",
        )
    slowest = min(live, key=lambda shard: list(ShardState).index(shard.state))
    return Computed(state=ReplicaState.STARTING, code=slowest.state.value, reason=f"{slowest.state} on {slowest.node}")


def _ending(facts: ReplicaFacts, live: list[ShardFact]) -> Computed:
    held = [shard for shard in live if shard.state is not ShardState.LOST]
    if not held:
        return Computed(state=ReplicaState.STOPPED, code="stopped", reason="stopped as wished")
    stuck = next((shard for shard in held if shard.state is ShardState.STOP_STUCK), None)
    reason = stuck.reason if stuck else "stopping as wished"
    serving = any(shard.rank == 0 and shard.draining and shard.wanted for shard in held)
    return Computed(
        state=ReplicaState.DRAINING,
        code="stop_stuck" if stuck else "draining" if serving else "stopping",
        reason="it ends with its last request" if serving and not stuck else reason,
        endpoint=_endpoint(held) if serving else "",
    )


def _lost(facts: ReplicaFacts) -> Computed:
    names = ", ".join(sorted({s.node for s in facts.shards if s.state is ShardState.LOST}))
    if facts.explained:
        return Computed(state=ReplicaState.PENDING, code="node_lost", reason=facts.explained)
    reason = f"node {names} is lost; the replica is to be placed elsewhere"
    return Computed(state=ReplicaState.LOST, code="node_lost", reason=reason)


def _failed(facts: ReplicaFacts, live: list[ShardFact]) -> Computed:
    first = next(shard for shard in facts.shards if shard.state is ShardState.FAILED)
    reason = first.reason or "the engine failed"
    if live:
        return Computed(state=ReplicaState.DEGRADED, code=first.code, reason=f"rank {first.rank}: {reason}")
    if facts.explained:
        return _pending(facts)
    state = ReplicaState.FAILED if facts.waiting else ReplicaState.PENDING
    return Computed(state=state, code=first.code or "failed", reason=f"{first.node}: {reason}")


def _pending(facts: ReplicaFacts) -> Computed:
    """What placement has refused since waits for a place, whatever pause was left."""
    state = ReplicaState.FAILED if facts.waiting and not facts.explained else ReplicaState.PENDING
    return Computed(state=state, code="unplaced", reason=facts.explained or "waits to be placed")


def _endpoint(live: list[ShardFact]) -> str:
    return next((shard.endpoint for shard in live if shard.rank == 0), "")
