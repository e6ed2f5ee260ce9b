"""A node's page: one sentence, its drain, what is wrong, cards with holder and health, adapters, what runs, facts."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db.models import QuerySet
from django.utils.html import format_html
from django.utils.safestring import SafeString

from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet import snapshots
from fleet.admin.attempts import cards, inside
from fleet.admin.card import health, memory, problems_of, texts, told_problems
from fleet.admin.display import badge, facts, lasting, link, short, story, table, when
from fleet.admin.page import Act, Page, acts, sections
from fleet.conf import fleet_conf
from fleet.domain.ledger import Holding, ledger
from fleet.domain.states import NodeStatus, ReplicaState
from fleet.domain.words import counted
from fleet.models import Event, Node, Replica, Shard
from fleet.services import liveness

#: Of the uses of a card: those that its health tells already.
_TOLD_BY_HEALTH = frozenset({Holding.UNUSABLE})


def page(node: Node, now: datetime) -> Page:
    return Page(
        sentence=_sentence(node, now),
        following=_following(node, now),
        acts=_acts(node),
        sections=sections(
            ("Drain", _drain(node, now)),
            ("What is wrong", _wrong(node)),
            ("Good to know", told_problems([("", text, "") for text in _warnings(node)])),
            ("GPUs", _cards(node)),
            ("Runs there", _shards(node, now)),
            ("Runs there, but no replica claims it", _orphans(node, now)),
            ("Adapters", _adapters(node)),
            ("Machine and agent", _facts(node, now)),
            ("Events", story(Event.objects.filter(node=node)[:30], now)),
        ),
    )


def living(node: Node) -> QuerySet[Shard]:
    """What may run there."""
    there = Shard.objects.filter(node=node).exclude(state__in=ENDED_SHARD_STATES)
    return there.select_related("replica__model", "node").prefetch_related("claims__gpu").order_by("replica", "rank")


def _sentence(node: Node, now: datetime) -> SafeString:
    why: SafeString | str = ""
    if node.status in (NodeStatus.UNREACHABLE, NodeStatus.LOST) and node.last_seen_at is not None:
        why = format_html(", silent for {}", lasting(node.last_seen_at, now))  # its reason holds how long it was then
    elif node.status_reason and node.status != NodeStatus.READY:
        why = f": {node.status_reason}"
    cordon = ""
    if node.drain_deadline_at:
        cordon = " It is being drained" + (f": {node.cordon_reason}." if node.cordon_reason else ".")
    elif not node.schedulable:
        cordon = " It is cordoned" + (f": {node.cordon_reason}." if node.cordon_reason else ".")
    return format_html("{} has been {} for {}{}.{}", node.name, node.status, lasting(node.status_at, now), why, cordon)


def _following(node: Node, now: datetime) -> SafeString | str:
    if node.status == NodeStatus.UNREACHABLE:
        if liveness.deaf():
            return "Its engines stay routable. No agent is heard now, so nothing is declared lost."
        if liveness.eviction_held():
            return "Its engines stay routable. Evictions are held, so it is not declared lost by itself."
        lost_at = (node.last_seen_at or now) + fleet_conf().lost_after
        return format_html("Its engines stay routable. If it stays silent it counts as lost {}.", when(lost_at, now))
    if node.status == NodeStatus.LOST:
        return "Nothing happens by itself: start its agent again, or delete the node."
    if node.status == NodeStatus.QUARANTINED:
        return "Two machines use its identity: run the agent's «join» on the copy, then release the node."
    if node.status == NodeStatus.JOINING:
        return "It is ready once it answers on its stream."
    return ""


def _acts(node: Node) -> tuple[Act, ...]:
    draining = node.drain_deadline_at is not None
    return acts(
        Act(action="release", label="Release from quarantine", kind="first")
        if node.status == NodeStatus.QUARANTINED
        else None,
        Act(action="cancel_drain", label="Cancel the drain") if draining else None,
        Act(action="drain", label="Change the deadline …" if draining else "Drain …"),
        Act(action="cordon", label="Cordon") if node.schedulable else Act(action="uncordon", label="Uncordon"),
    )


def _drain(node: Node, now: datetime) -> SafeString | str:
    """How far it is: what has left since it began, what is still there, and what each waits for."""
    if node.drain_deadline_at is None:
        return ""
    left = list(living(node))
    began = Event.objects.filter(node=node, kind="node_drain").order_by("-id").values_list("at", flat=True).first()
    ended = Shard.objects.filter(node=node, state__in=ENDED_SHARD_STATES, state_at__gte=began or now)
    waiting = {shard.replica_id for shard in left}
    gone = ended.exclude(replica__in=waiting).values("replica").distinct().count()
    whole = gone + len(waiting)
    deadline = when(node.drain_deadline_at, now)
    if not left:
        return format_html("<p>Nothing of a replica is left there. It stays cordoned until it is uncordoned.</p>")
    bar = format_html('<progress max="{}" value="{}" aria-label="left the node"></progress>', whole, gone)
    said = "<p>{} still there, {} gone. {} What is still there is stopped {}.</p>"
    told = format_html(said, counted(len(waiting), "replica"), gone, bar, deadline)
    substitutes = {r.replaces_id: r for r in Replica.objects.filter(replaces__in=waiting).select_related("model")}
    rows = [
        (
            link(s.replica, s.replica.label),
            badge(ShardState(s.state)),
            inside([s]),
            _awaited(substitutes.get(s.replica_id)),
        )
        for s in left
    ]
    return format_html("{}{}", told, table(("still there", "state", "requests", "waits for"), rows))


def _awaited(substitute: Replica | None) -> SafeString | str:
    if substitute is None:
        return "a place elsewhere"
    name = link(substitute, substitute.label)
    state = badge(ReplicaState(substitute.state))
    return format_html("{} {} {}", name, state, substitute.reason[:160])


def _wrong(node: Node) -> SafeString | str:
    told = list(_problems(node))
    if isinstance(node.inventory.get("error"), str):
        told.insert(0, ("", node.inventory["error"], "detection is broken: the last known hardware is shown"))
    return told_problems(told)


def _warnings(node: Node) -> list[str]:
    """What its agent says of the machine as a whole: of cards and ports with problems it tells again there."""
    warnings = node.inventory.get("warnings")
    places = tuple(f"{where} " for where, _, _ in _problems(node))
    given = warnings if isinstance(warnings, list) else ()
    return [text for text in given if isinstance(text, str) and not text.startswith(places)]


def _problems(node: Node) -> Iterator[tuple[str, str, str]]:
    for gpu in node.gpus.filter(present=True).order_by("index"):
        yield from problems_of(f"GPU {gpu.index}", gpu.problems)
    for port in node.adapters.filter(present=True):
        yield from problems_of(f"{port.hca}/{port.port}", port.problems)


def _cards(node: Node) -> SafeString | str:
    lines = {line.gpu: line for line in ledger(snapshots.load(node=node.pk))}
    known = {str(replica): replica for replica in Replica.objects.filter(shards__node=node).select_related("model")}
    rows = []
    for gpu in node.gpus.filter(present=True).order_by("index"):
        line = lines.get(gpu.pk)
        holder: SafeString | str = "" if line is None or line.use in _TOLD_BY_HEALTH else line.text
        if line is not None and line.replica in known:
            rest = line.text.removeprefix(line.replica)
            holder = format_html("{}{}", link(known[line.replica], line.replica), rest)
        kind, room = short(gpu.gpu_class), short(memory(gpu))
        rows.append((link(gpu, str(gpu.index)), kind, room, short(gpu.domain), holder, health(gpu)))
    return table(("GPU", "class", "memory", "NVLink domain", "held by", "health"), rows)


def _adapters(node: Node) -> SafeString | str:
    rows = [
        (
            f"{a.hca}/{a.port}",
            a.state,
            f"{a.rate_gbps:g} Gb/s" if a.rate_gbps else None,
            a.link_layer,
            a.fabric,
            a.address,
            texts(a),
        )
        for a in node.adapters.filter(present=True).select_related("fabric")
    ]
    return table(("port", "state", "rate", "link", "fabric", "address", "problems"), rows)


def _shards(node: Node, now: datetime) -> SafeString | str:
    rows = [
        (
            link(s.replica, s.replica.label),
            s.rank,
            badge(ShardState(s.state)),
            when(s.state_at, now),
            cards(s),
            ", ".join(map(str, s.pids)),
            s.endpoint,
            inside([s]),
            s.reason,
        )
        for s in living(node)
    ]
    return table(("replica", "rank", "state", "since", "GPUs", "pid", "endpoint", "requests", "reason"), rows)


def _orphans(node: Node, now: datetime) -> SafeString | str:
    """Each is told to end at every report of its agent that still has it."""
    rows = [
        (
            each["shard"],
            each["attempt"],
            ", ".join(map(str, each["pids"])),
            when(datetime.fromisoformat(each["since"]), now),
        )
        for each in node.orphans
    ]
    return table(("shard", "attempt", "pid", "since"), rows)


def _facts(node: Node, now: datetime) -> SafeString | str:
    # Its agent looks all the time, tells what has changed, and with each heartbeat how old its last look is.
    stale = timedelta(seconds=node.inventory_stale_seconds or 0)
    told_at = max(filter(None, (node.inventory_at, node.last_seen_at)), default=None)
    seen = when(told_at - stale, now) if node.inventory_at and told_at else "never"
    pairs = lambda given: ", ".join(f"{name} {value}".strip() for name, value in sorted(given.items()))  # noqa: E731
    rows: list[tuple[str, object]] = [
        ("last heard", when(node.last_seen_at, now) if node.last_seen_at else "never"),
        ("hardware looked at", seen),
        ("address", node.mgmt_addr),
        ("hostname", node.hostname),
        ("agent", node.agent_version),
        ("its engines", pairs(node.engines)),
        ("labels", pairs(node.labels)),
        ("fabrics", ", ".join(map(str, node.fabrics))),
        ("driver", node.inventory.get("driver")),
        ("CUDA", node.inventory.get("cuda")),
        ("hardware read by", node.inventory.get("source")),
    ]
    return facts(rows)
