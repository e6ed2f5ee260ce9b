"""Engines that an agent runs and no replica claims: a list on the node's row, which follows the agent's newest word."""

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from agent_client.protocol.messages import ShardReport
from agent_client.protocol.states import ENDED_SHARD_STATES
from fleet import doorbell
from fleet.domain.states import Severity
from fleet.domain.words import counted
from fleet.models import Event, Gpu, GpuClaim, Node, Shard
from fleet.services.events import record


def store(node: Node, reports: Sequence[ShardReport], *, now: datetime) -> None:
    """All that run there. Within a transaction that holds the node's row."""
    known = {(each["shard"], each["attempt"]): each for each in node.orphans}
    ordered = sorted(reports, key=lambda each: (each.shard, each.epoch))
    _put(node, [_entry(node.pk, each, known.get((each.shard, each.epoch)), now) for each in ordered])
    _tell(node)


def store_one(node_id: int, report: ShardReport, *, now: datetime) -> bool:
    """One engine's word of its own; True while it runs, so that its agent must be told to end it."""
    runs = report.state not in ENDED_SHARD_STATES
    node = Node.objects.select_for_update().get(pk=node_id)
    key = (report.shard, report.epoch)
    found = next((each for each in node.orphans if (each["shard"], each["attempt"]) == key), None)
    others = [each for each in node.orphans if each is not found]
    if runs:
        others.append(_entry(node_id, report, found, now))
    _put(node, sorted(others, key=lambda each: (each["shard"], each["attempt"])))
    return runs


def _put(node: Node, orphans: list[dict[str, Any]]) -> None:
    if node.orphans == orphans:
        return
    node.orphans = orphans
    Node.objects.filter(pk=node.pk).update(orphans=orphans)
    doorbell.ring_reconcile()  # cards that they use are in nobody's way any more, or are now


def _entry(node_id: int, report: ShardReport, known: Mapping[str, Any] | None, now: datetime) -> dict[str, Any]:
    """`known`: what was stored of it before, when its shard's row may still have been there."""
    known = known or {}
    return {
        "shard": report.shard,
        "attempt": report.epoch,
        "pids": list(report.pids),
        "gpus": known.get("gpus") or _cards(node_id, report),
        "since": known.get("since") or _text(now),
    }


def _cards(node_id: int, report: ShardReport) -> list[str]:
    """The UUIDs of those that it was given. Where nothing is known of that any more, as of a node that was deleted and
    joins anew: of those that nobody claims the ones that something of ours is on, else all."""
    if given := _given(report):
        return given
    claimed = GpuClaim.objects.filter(released_at__isnull=True).values("gpu")
    free = list(Gpu.objects.filter(node=node_id, present=True).exclude(pk__in=claimed).order_by("pk"))
    seen = [gpu for gpu in free if any(not each.get("foreign", True) for each in gpu.processes)]
    return [gpu.uuid for gpu in seen or free]


def _given(report: ShardReport) -> list[str]:
    replica, _, rank = report.shard.rpartition("/")
    try:
        uid = uuid.UUID(replica)
    except ValueError:
        return []
    if not rank.isdecimal() or len(rank) > 6:
        return []
    shards = Shard.objects.filter(replica__uid=uid, rank=int(rank), epoch=report.epoch)
    return list(GpuClaim.objects.filter(shard__in=shards).order_by("gpu").values_list("gpu__uuid", flat=True))


def _text(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _tell(node: Node) -> None:
    """Engines that no replica claims are told to end by the sync that follows; who looks for them finds them by name.

    They are told of again and again until they have ended, and the same words are no news.
    """
    if not node.orphans:
        return
    names = "; ".join(map(_name, node.orphans[:10]))
    text = f"{node.name} runs {counted(len(node.orphans), 'engine')} that no replica claims, told to end: {names}"
    newest = Event.objects.filter(node=node, kind="engines_orphaned").order_by("-id").first()
    if newest is None or newest.text != text:
        record("engines_orphaned", text, severity=Severity.WARNING, node_id=node.pk)


def _name(orphan: Mapping[str, Any]) -> str:
    pids = ", ".join(map(str, orphan["pids"]))
    return f"{orphan['shard']} attempt {orphan['attempt']}" + (f" (pids {pids})" if pids else "")
