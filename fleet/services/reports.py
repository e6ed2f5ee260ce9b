"""What agents say of their shards. Reports are whole and may be lost, doubled or late: each is a level, not an edge."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from agent_client.protocol.messages import Report, ShardReport
from agent_client.protocol.states import ENDED_SHARD_STATES, FailureCode, ShardState
from fleet import doorbell
from fleet.domain.states import NODE_REBOOTED, CommandKind, CommandState, NodeStatus
from fleet.models import Command, Node, Shard
from fleet.services import claims, commands, inventory, orphans, returns
from fleet.services.commands import wire_name
from fleet.services.errors import StaleTransition
from fleet.services.replicas import keep_record, recompute
from fleet.services.transitions import move_shard


@transaction.atomic
def apply_shard_status(*, node_id: int, session_id: int, report: ShardReport, now: datetime) -> bool:
    """One shard's report; True when the agent runs something that it should not, so that it needs a sync."""
    if not Node.objects.filter(pk=node_id, session_id=session_id).exists():
        return False  # a newer session speaks for the node
    shard = _find(node_id, report)
    if shard is None or shard.state in ENDED_SHARD_STATES:
        return orphans.store_one(node_id, report, now=now)
    astray = _apply(shard, report)
    recompute(shard.replica_id, now=now)
    keep_record(shard.replica_id, report)
    return astray


@transaction.atomic
def apply_whole_report(*, node_id: int, session_id: int, report: Report, now: datetime) -> bool:
    """A whole report; True when the agent needs a sync."""
    node = Node.objects.select_for_update().filter(pk=node_id, session_id=session_id).first()
    if node is None:
        return False
    if report.inventory is not None:
        inventory.store(node, report.inventory, report.inventory_fingerprint, now=now)
        doorbell.ring_reconcile()
    if report.engines is not None and dict(report.engines) != node.engines:
        Node.objects.filter(pk=node_id).update(engines=dict(report.engines))
        doorbell.ring_reconcile()
    astray = apply_shards(node, report.shards, now=now)
    if node.status in (NodeStatus.UNREACHABLE, NodeStatus.LOST):
        returns.welcome(node_id, reason="reported again")
    return astray


def apply_shards(node: Node, reports: Iterable[ShardReport], *, now: datetime, rebooted: bool = False) -> bool:
    """Bring all shards of a node into line with the whole list that its agent gave. Within a transaction."""
    rows = Shard.objects.filter(node=node).exclude(state__in=ENDED_SHARD_STATES).select_related("replica")
    live = {(wire_name(shard), shard.epoch): shard for shard in rows}
    touched: set[int] = set()
    told: list[tuple[int, ShardReport]] = []
    astray = False
    unclaimed: list[ShardReport] = []
    for report in reports if not rebooted else ():  # what ran is dead, whatever an agent's ledger makes of it
        shard = live.pop((report.shard, report.epoch), None)
        if shard is None:
            unclaimed += [report] if report.state not in ENDED_SHARD_STATES else []
            continue
        astray = _apply(shard, report) or astray
        touched.add(shard.replica_id)
        told.append((shard.replica_id, report))
    for shard in live.values():
        # An order that was not delivered yet is unknown to the agent; everything else it should have told of.
        if shard.state == ShardState.ASSIGNED and (shard.wanted or _is_open(shard)):
            continue
        _missing(shard, node, rebooted=rebooted)
        touched.add(shard.replica_id)
    for replica_id in touched:
        recompute(replica_id, now=now)
    for replica_id, report in told:
        keep_record(replica_id, report)
    orphans.store(node, unclaimed, now=now)
    return astray or bool(unclaimed)


@transaction.atomic
def apply_answer(
    *, command_id: int, node_id: int, session_id: int, accepted: bool, code: str, detail: str, now: datetime
) -> None:
    """An agent's answer to an order. A start that it refuses is a failed attempt: nothing else will be told of it."""
    if not Node.objects.filter(pk=node_id, session_id=session_id).exists():
        return  # a newer session speaks for the node: it is asked again there
    told = f"{code}: {detail}" if code else detail
    command = commands.answer(command_id=command_id, node_id=node_id, accepted=accepted, detail=told)
    if command is None or accepted or command.kind != CommandKind.START:
        return
    _try_move(command.shard, ShardState.FAILED, code=(code or "refused")[:60], reason=detail or "the order was refused")
    recompute(command.shard.replica_id, now=now)


def _find(node_id: int, report: ShardReport) -> Shard | None:
    uid, _, rank = report.shard.rpartition("/")
    if not rank.isdecimal() or len(rank) > 6:
        return None
    rows = Shard.objects.filter(node_id=node_id, rank=int(rank), epoch=report.epoch).select_related("replica")
    return next((shard for shard in rows if str(shard.replica.uid) == uid), None)


def _is_open(shard: Shard) -> bool:
    """An order for it waits for its answer; once a stop has been answered, nothing else would tell of its end."""
    return Command.objects.filter(shard=shard, state=CommandState.OPEN).exists()


def _missing(shard: Shard, node: Node, *, rebooted: bool) -> None:
    if not shard.wanted:
        _try_move(shard, ShardState.STOPPED, reason="gone from the node")
        return
    if rebooted:
        code, reason = NODE_REBOOTED, f"node {node.name} has rebooted: its engines ended with it"
    else:
        code, reason = FailureCode.LOST_TRACK.value, f"the agent on {node.name} no longer has this engine"
    _try_move(shard, ShardState.FAILED, code=code, reason=reason)


def _apply(shard: Shard, report: ShardReport) -> bool:
    """Store what is told of one shard; True when it runs although it was given up, so that it must be ended."""
    state = report.state
    if shard.code == NODE_REBOOTED:
        return state not in ENDED_SHARD_STATES  # its agent only finds it gone
    if shard.state == ShardState.LOST and state not in ENDED_SHARD_STATES and not _take_back(shard):
        return True
    if state is ShardState.READY and shard.rank == 0 and not report.endpoint:
        state = ShardState.LOADING  # ready means reachable
    fields: dict[str, Any] = {
        "code": report.code[:60],
        "reason": report.detail,
        "hint": report.hint,
        "endpoint": (report.endpoint or "")[:300],
        "pids": list(report.pids),
        "phase": report.phase[:40],
        "progress": report.progress,
        "exit_code": report.exit_code,
        "exit_signal": report.exit_signal,
        "tail": [line[:2000] for line in report.tail[-100:]],
        "running": _count(report.running),
        "waiting": _count(report.waiting),
    }
    if (shard.phase, shard.progress) != (fields["phase"], fields["progress"]):
        fields["moved_at"] = Now()
    if shard.stalled_at is not None or report.stalled_seconds is not None:
        fields["stalled_at"] = _stalled_at(report)
    if shard.state == state:
        if changed := {name: value for name, value in fields.items() if getattr(shard, name) != value}:
            Shard.objects.filter(pk=shard.pk).update(**changed)
    else:
        _try_move(shard, state, **fields)
    return False


def _count(figure: int | None) -> int | None:
    return None if figure is None else min(max(figure, 0), 2**31 - 1)


def _stalled_at(report: ShardReport) -> Any:
    """Since when, by the database's clock: the agent tells a duration, and two machines' clocks are never compared."""
    if report.stalled_seconds is None:
        return None
    return Now() - timedelta(seconds=min(max(report.stalled_seconds, 0.0), 86_400.0))


def _take_back(shard: Shard) -> bool:
    """A shard given up for lost is still there: keep it if it is wanted, not replaced, and its cards are free.

    Else it is told to end, and holds what it can of its cards until it is seen to have ended.
    """
    if shard.wanted and shard.epoch == shard.replica.attempt and claims.reclaim(shard):
        return True
    claims.hold_back(shard)
    told = Command.objects.filter(shard=shard, kind=CommandKind.STOP, state__in=[CommandState.OPEN, CommandState.DONE])
    if not told.exists():
        commands.order(shard=shard, kind=CommandKind.STOP, reason="it was replaced while its node was lost")
    return False


def _try_move(shard: Shard, target: ShardState, **fields: Any) -> None:
    try:
        move_shard(shard.pk, target, **fields)
    except StaleTransition:
        return  # a late report: the row is further along
    if target in ENDED_SHARD_STATES:
        claims.release(shard.pk)
