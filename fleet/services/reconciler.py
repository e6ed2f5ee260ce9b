"""One tick: lock, snapshot, decide, then do each action in its own transaction by compare-and-set.

The lock only saves work: two ticks at once collide on rows, and the loser drops its action.
"""

import logging
import secrets
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import Q

from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet import doorbell, snapshots
from fleet.domain.reconcile import (
    Action,
    CreateReplica,
    DeleteReplica,
    Explain,
    RemoveReplica,
    StartReplica,
    StopShard,
    reconcile,
)
from fleet.domain.states import CommandKind, ReplicaWish
from fleet.models import CatalogModel, Lease, ProfileRevision, Replica, Shard
from fleet.services import claims, commands
from fleet.services.errors import FleetError
from fleet.services.events import record
from fleet.services.replicas import recompute

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
#: Actions make room for others (a stop frees a number, a create makes something to place): so a few rounds a tick.
ROUNDS = 4


def run(*, holder: str, now: datetime) -> int | None:
    """Reconcile for a few rounds or until nothing is left; how many actions. None: another tick is under way."""
    if not _take_lease(holder, now):
        return None
    done = 0
    try:
        for _ in range(ROUNDS):
            actions = reconcile(snapshots.load(), now)
            count = sum(_do(action, now) for action in actions)
            done += count
            if not count:
                break
    finally:
        Lease.objects.filter(name="reconcile", holder=holder).update(expires_at=None)
    return done


def _take_lease(holder: str, now: datetime) -> bool:
    Lease.objects.get_or_create(name="reconcile")
    free = Lease.objects.filter(Q(expires_at__isnull=True) | Q(expires_at__lt=now), name="reconcile")
    return free.update(holder=holder, expires_at=now + timedelta(seconds=LEASE_SECONDS)) == 1


def _do(action: Action, now: datetime) -> bool:
    """Carry one action out; False when the fleet has moved on, so that the next tick decides anew."""
    try:
        with transaction.atomic():
            changed = _act(action, now)
    except (IntegrityError, FleetError) as error:
        log.info("reconcile.dropped action=%s error=%s", type(action).__name__, error)
        return False
    if changed:
        log.info("reconcile.done action=%s", action)
    return changed


def _act(action: Action, now: datetime) -> bool:
    match action:
        case CreateReplica(model=model_id, number=number):
            return _create(model_id, number)
        case RemoveReplica(replica=replica_id):
            rows = Replica.objects.filter(pk=replica_id).exclude(wish=ReplicaWish.REMOVE)
            return rows.update(wish=ReplicaWish.REMOVE) == 1
        case DeleteReplica(replica=replica_id):
            return _delete(replica_id)
        case StopShard(shard=shard_id, reason=reason):
            return _stop(shard_id, reason, now)
        case StartReplica():
            return _start(action, now)
        case Explain(replica=replica_id, refusal=refusal):
            Replica.objects.filter(pk=replica_id).update(explanation=refusal.to_json(), restart_requested=False)
            replica = Replica.objects.select_related("model").get(pk=replica_id)
            record("replica_unplaced", f"{replica.label}: {refusal.text}", replica_id=replica_id)
            recompute(replica_id, now=now)
            return False  # it made no room for anything


def _create(model_id: int, number: int) -> bool:
    model = CatalogModel.objects.select_for_update().filter(pk=model_id).first()
    if model is None:
        return False
    revision = ProfileRevision.objects.get(model=model, number=model.revision)
    replica = Replica.objects.create(model=model, number=number, revision=revision)
    record("replica_created", f"{replica.label} created", replica_id=replica.pk)
    return True


def _delete(replica_id: int) -> bool:
    live = Shard.objects.filter(replica_id=replica_id).exclude(state__in=ENDED_SHARD_STATES)
    replica = Replica.objects.select_for_update().select_related("model").filter(pk=replica_id).first()
    if replica is None or live.exists():
        return False
    record("replica_removed", f"{replica.label} removed")
    model = replica.model
    replica.delete()
    if model.leaving and not Replica.objects.filter(model=model).exists():
        record("model_deleted", f"{model.name} deleted")
        model.delete()
        doorbell.ring_routes()
    return True


def _stop(shard_id: int, reason: str, now: datetime) -> bool:
    shard = Shard.objects.select_for_update().select_related("replica").filter(pk=shard_id, wanted=True).first()
    if shard is None or shard.state in ENDED_SHARD_STATES:
        return False
    if shard.state == ShardState.LOST:
        Shard.objects.filter(pk=shard_id).update(wanted=False)  # nobody is there to stop it; desired state will
        return True
    commands.order(shard=shard, kind=CommandKind.STOP, reason=reason)
    recompute(shard.replica_id, now=now)
    return True


def _start(action: StartReplica, now: datetime) -> bool:
    replica = Replica.objects.select_for_update().select_related("model").get(pk=action.replica)
    if replica.attempt != action.attempt or replica.wish != ReplicaWish.RUN:
        return False
    revision = ProfileRevision.objects.get(model=replica.model, number=replica.model.revision)
    attempt = replica.attempt + 1
    Shard.objects.filter(replica=replica, epoch__lt=attempt).update(wanted=False)
    Replica.objects.filter(pk=replica.pk, attempt=action.attempt).update(
        attempt=attempt,
        revision=revision,
        explanation=None,
        restart_requested=False,
        next_try_at=None,
        engine_key=replica.engine_key or secrets.token_urlsafe(24),
    )
    for part in action.placement.shards:
        shard = Shard.objects.create(
            replica=replica, rank=part.rank, node_id=part.node, epoch=attempt, fabric_env=dict(part.fabric_env)
        )
        claims.claim(shard, part.gpus)
        commands.order(shard=shard, kind=CommandKind.START, reason="placed")
    cards = f" on {len(action.placement.gpus)} {action.placement.gpu_class}" if action.placement.gpus else ""
    record(
        "replica_placed",
        f"{replica.label}: attempt {attempt} placed on {', '.join(action.placement.node_names)}{cards}",
        replica_id=replica.pk,
        node_id=action.placement.head.node,
    )
    recompute(replica.pk, now=now)
    return True
