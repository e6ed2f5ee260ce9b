"""Brings a replica's columns into line with its shards: state, endpoint, failures, claims."""

import random
from datetime import datetime
from typing import Any

from django.db import transaction

from agent_client.protocol.messages import ShardReport
from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet import doorbell
from fleet.domain import backoff
from fleet.domain.replica_state import Computed, ReplicaFacts, ShardFact, compute
from fleet.domain.states import NODE_REBOOTED, ReplicaState, ReplicaWish, Severity
from fleet.models import Replica, Shard
from fleet.services import claims
from fleet.services.errors import StaleTransition
from fleet.services.events import record
from fleet.services.transitions import move_replica

#: So many failures in a row are a loop, which an event says.
LOOP = 3
ROUTED = (ReplicaState.READY, ReplicaState.DRAINING)


@transaction.atomic
def recompute(replica_id: int, *, now: datetime) -> None:
    """Compute the state from facts and store it. Idempotent; a lost race leaves the work to the next call."""
    replica = Replica.objects.select_for_update().select_related("model", "revision").filter(pk=replica_id).first()
    if replica is None:
        return
    shards = list(Shard.objects.filter(replica=replica, epoch=replica.attempt).select_related("node").order_by("rank"))
    for shard in shards:
        if shard.state in ENDED_SHARD_STATES:
            claims.release(shard.pk)
    fields = _failure_fields(replica, shards, now)
    _tell_of_a_loop(replica, fields, now)
    computed = compute(_facts(replica, shards, fields, now))
    fields |= {"code": computed.code, "reason": computed.reason, "endpoint": computed.endpoint}
    if computed.state is ReplicaState.READY and replica.state != ReplicaState.READY:
        fields |= {"ready_at": now, "explanation": None}
    if computed.state == replica.state:
        changed = {name: value for name, value in fields.items() if getattr(replica, name) != value}
        Replica.objects.filter(pk=replica.pk).update(**changed) if changed else None
    else:
        _move(replica, computed, fields)
    if replica.state in ROUTED or computed.state in ROUTED:
        doorbell.ring_routes()
    if computed.state in (ReplicaState.PENDING, ReplicaState.DEGRADED, ReplicaState.STOPPED, ReplicaState.LOST):
        doorbell.ring_reconcile()


def _move(replica: Replica, computed: Computed, fields: dict[str, Any]) -> None:
    try:
        move_replica(replica.pk, computed.state, attempt=replica.attempt, **fields)
    except StaleTransition:
        return
    bad = computed.state in (ReplicaState.FAILED, ReplicaState.DEGRADED, ReplicaState.LOST)
    bad = bad and computed.code != "stopping_attempt"  # that is llmgw's own doing
    record(
        f"replica_{computed.state}",
        f"{replica.label}: {replica.state} → {computed.state}" + (f": {computed.reason}" if computed.reason else ""),
        severity=Severity.WARNING if bad else Severity.INFO,
        replica_id=replica.pk,
        data={"attempt": replica.attempt, "code": computed.code},
    )


def _facts(replica: Replica, shards: list[Shard], fields: dict[str, Any], now: datetime) -> ReplicaFacts:
    next_try_at = fields.get("next_try_at", replica.next_try_at)
    return ReplicaFacts(
        wish=ReplicaWish(replica.wish),
        waiting=backoff.waits(next_try_at, now),
        explained=(replica.explanation or {}).get("text", ""),
        shards=tuple(
            ShardFact(
                rank=shard.rank,
                state=ShardState(shard.state),
                wanted=shard.wanted,
                draining=shard.draining,
                endpoint=shard.endpoint,
                code=shard.code,
                reason=shard.reason,
                node=shard.node.name,
            )
            for shard in shards
        ),
    )


def _failure_fields(replica: Replica, shards: list[Shard], now: datetime) -> dict[str, Any]:
    """What a failed attempt leaves on the replica, once per attempt: the count, the wait, first and latest failure."""
    blamed = [shard for shard in shards if shard.state == ShardState.FAILED or shard.verdict_code]
    failed = min(blamed, key=lambda shard: (not shard.verdict_code, shard.state_at), default=None)  # the first to go
    latest = replica.latest_failure or {}
    if failed is None or latest.get("attempt") == failed.epoch:
        return {}
    forgiven = replica.ready_at is not None and now - replica.ready_at >= backoff.RESET_AFTER
    count = 1 if forgiven else replica.crash_count + 1
    failure = {
        "attempt": failed.epoch,
        "at": now.isoformat(),
        "node": failed.node.name,
        "rank": failed.rank,
        "code": failed.verdict_code or failed.code,
        "reason": failed.verdict or failed.reason,
        "hint": failed.hint,
        "revision": replica.revision.number,
        "agent_version": failed.node.agent_version,
        "engine_version": failed.node.engines.get(str(replica.revision.profile.get("engine")), ""),
        "exit_code": failed.exit_code,
        "exit_signal": failed.exit_signal,
        "tail": failed.tail,
    }
    first = replica.first_failure if replica.first_failure and not forgiven else failure
    # Nothing is wrong with the engine of a machine that was switched off; of one that falls again and again, it may be.
    at_once = failure["code"] == NODE_REBOOTED and count == 1
    return {
        "crash_count": count,
        "next_try_at": None if at_once else now + backoff.pause(count, jitter=random.random()),
        "first_failure": first,
        "latest_failure": failure,
        "ready_at": None,
    }


def _tell_of_a_loop(replica: Replica, fields: dict[str, Any], now: datetime) -> None:
    if fields.get("crash_count", 0) < LOOP:
        return
    pause = (fields["next_try_at"] - now).total_seconds()
    steady = f"{backoff.RESET_AFTER.total_seconds() / 60:.0f} min of ready in between"
    text = f"{replica.label} failed {fields['crash_count']} times without {steady}: next try in {pause:.0f} s"
    record("replica_loops", text, severity=Severity.WARNING, replica_id=replica.pk)


def keep_record(replica_id: int, report: ShardReport) -> None:
    """What a failed attempt left behind, beside its sentence: in the first and the latest failure of the replica."""
    if report.record is None:
        return
    rank = int(report.shard.rpartition("/")[2])
    replica = Replica.objects.select_for_update().get(pk=replica_id)
    fields = {}
    for name in ("first_failure", "latest_failure"):
        failure = getattr(replica, name)
        if failure and "record" not in failure and (failure["attempt"], failure["rank"]) == (report.epoch, rank):
            fields[name] = {**failure, "record": dict(report.record)}
    if fields:
        Replica.objects.filter(pk=replica_id).update(**fields)
