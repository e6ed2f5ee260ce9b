"""The attempts of a replica: where each rank of each ran, how far it came, and why it ended."""

from collections.abc import Iterable
from datetime import datetime

from django.db.models import QuerySet
from django.utils.html import format_html
from django.utils.safestring import SafeString

from agent_client.protocol.states import ShardState
from fleet.admin.display import badge, link, short, table, when
from fleet.models import Replica, Shard

#: So many ranks of newest attempts are told.
TOLD = 12


def of_replica(replica: Replica) -> QuerySet[Shard]:
    return replica.shards.select_related("node").prefetch_related("claims__gpu").order_by("-epoch", "rank")


def attempts(replica: Replica, now: datetime) -> SafeString | str:
    head = ("attempt", "rank", "node", "GPUs", "state", "since", "why")
    rows, before = [], None
    for shard in of_replica(replica)[:TOLD]:
        same = before is not None and before.reason == shard.reason != ""
        rows.append(_row(shard, now, f"as attempt {before.epoch}" if before and same else shard.reason))
        before = shard
    return table(head, rows)


def _row(shard: Shard, now: datetime, why: str) -> tuple[object, ...]:
    return (
        shard.epoch,
        shard.rank,
        short(link(shard.node, shard.node.name)),
        cards(shard),
        format_html("{}{}", badge(ShardState(shard.state)), _progress(shard)),
        when(shard.state_at, now),
        why,
    )


def cards(shard: Shard) -> str:
    found = sorted(claim.gpu.index if claim.gpu.index is not None else -1 for claim in shard.claims.all())
    return ", ".join(map(str, found)) or "CPU"


def _progress(shard: Shard) -> SafeString | str:
    """The phase of a start, as a bar where the engine draws one."""
    if not shard.phase or shard.state not in (ShardState.LAUNCHING, ShardState.LOADING):
        return ""
    if shard.progress is None:
        return format_html(" {}", shard.phase)
    return format_html(
        ' {} {} <progress max="100" value="{}" aria-label="{}"></progress>',
        *(shard.phase, f"{shard.progress:.0%}", round(shard.progress * 100), shard.phase),
    )


def inside(shards: Iterable[Shard]) -> int | None:
    """Requests in the engine, by its own word; None where it does not say."""
    known = [shard.running + (shard.waiting or 0) for shard in shards if shard.running is not None]
    return sum(known) if known else None
