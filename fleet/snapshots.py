"""Rows → FleetSnapshot, in a fixed number of queries whatever the size of the fleet."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet, TextField
from django.db.models.functions import Cast, Now

from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet.domain import ages
from fleet.domain.room import SnapshotRoom
from fleet.domain.states import NodeStatus
from fleet.domain.types import FleetSnapshot, GpuView, NodeView, PortView
from fleet.models import Adapter, Gpu, GpuClaim, Node, Shard
from fleet.wishes import load_wishes

#: Placement prefers nodes that have been back for longer (flap damping, DESIGN.md section 3).
SETTLED_AFTER = timedelta(seconds=60)


_NODE_FIELDS = (
    *("pk", "name", "status", "status_at", "schedulable", "cordon_reason", "drain_deadline_at", "last_seen_at"),
    *("damped_until", "labels", "engines", "mgmt_addr", "now"),
)
_GPU_FIELDS = (
    *("pk", "node_id", "uuid", "index", "gpu_class", "memory_total_mib", "memory_used_mib", "compute_capability"),
    *(
        "domain",
        "spans_nodes",
        "mig_text",
        "placeable",
        "present",
        "problems_text",
        "processes_text",
        "schedulable",
        "cordon_reason",
        "orphans_text",
    ),
)
_PORT_FIELDS = (
    *("node_id", "hca", "port", "fabric__name", "state", "problems_text", "netdev", "link_layer", "gid_index"),
    "address",
)
ACTIVE = ("ACTIVE", "ACTIVE_DEFER")
_NOBODY = ("", 0)


def load(*, node: int | None = None) -> FleetSnapshot:
    """The whole fleet, in a fixed number of queries. `node`: of the machines that one alone, with what runs there."""
    wishes = load_wishes()
    if node is not None:
        here = tuple(each for each in wishes.replicas if any(shard.node == node for shard in each.shards))
        wishes = replace(wishes, replicas=here)
    return load_room(wishes, nodes=None if node is None else [node]).snapshot


def load_room(
    wishes: FleetSnapshot, *, free_cards_only: bool = False, nodes: Collection[int] | None = None
) -> SnapshotRoom:
    """The machines beside what is wished: five queries more.

    `free_cards_only`: nodes that may take something and what is free there; the others are most of a busy fleet.
    `nodes`: these alone.
    """
    if free_cards_only:
        return SnapshotRoom(replace(wishes, nodes=_with_free_cards(wishes)))
    cards, rows, ports = Gpu.objects.all(), Node.objects.all(), Adapter.objects.filter(present=True)
    claims = GpuClaim.objects.filter(released_at__isnull=True).order_by("pk")
    if nodes is not None:
        cards, rows, ports = cards.filter(node__in=nodes), rows.filter(pk__in=nodes), ports.filter(node__in=nodes)
        claims = claims.filter(gpu__node__in=nodes)
    held: dict[int, list[int]] = defaultdict(list)
    holders: dict[int, tuple[str, int]] = {}
    labels = {replica.pk: replica.label for replica in wishes.replicas}
    for gpu, holder, epoch, owner in claims.values_list("gpu_id", "shard_id", "shard__epoch", "shard__replica_id"):
        held[holder].append(gpu)
        holders[gpu] = (labels.get(owner, "a new replica"), epoch)
    views = _nodes(wishes, rows, _cards(cards, holders), _ports(ports))
    return SnapshotRoom(replace(wishes, nodes=views), {shard: tuple(gpus) for shard, gpus in held.items()})


def _with_free_cards(wishes: FleetSnapshot) -> tuple[NodeView, ...]:
    """What can be placed upon; why the rest can't is not read."""
    standing = Node.objects.filter(status=NodeStatus.READY, schedulable=True, drain_deadline_at__isnull=True)
    standing = standing.exclude(damped_until__gt=Now())
    unclaimed = ~Exists(GpuClaim.objects.filter(gpu=OuterRef("pk"), released_at__isnull=True))
    good = Gpu.objects.filter(unclaimed, node__in=standing, present=True, placeable=True, schedulable=True)
    classes = _classes(wishes)
    cards = _cards(good if classes is None else good.filter(gpu_class__in=classes), {})
    ports = Adapter.objects.filter(node__in=cards, present=True, fabric__isnull=False, state__in=ACTIVE)
    return _nodes(wishes, standing.filter(pk__in=cards), cards, _ports(ports))


def _classes(wishes: FleetSnapshot) -> set[str] | None:
    """Those that the models in scope may use; None: any."""
    models = [model for model in wishes.models if wishes.scope is None or model.pk in wishes.scope]
    profiles = [profile for model in models for profile in model.profiles if profile.gpus_total]
    return {name for each in profiles for name in each.gpu_class} if all(each.gpu_class for each in profiles) else None


def _nodes(
    wishes: FleetSnapshot,
    nodes: QuerySet[Node],
    cards: Mapping[int, list[GpuView]],
    ports: Mapping[int, list[PortView]],
) -> tuple[NodeView, ...]:
    busy: dict[int, int] = defaultdict(int)
    for replica in wishes.replicas:
        for shard in replica.shards:
            busy[shard.node] += shard.state not in ENDED_SHARD_STATES
    files = _files(wishes.scope)
    rows = nodes.annotate(now=Now()).order_by("name").values_list(*_NODE_FIELDS, named=True)
    return tuple(
        NodeView(
            pk=node.pk,
            name=node.name,
            status=NodeStatus(node.status),
            schedulable=node.schedulable,
            cordon_reason=node.cordon_reason,
            draining=node.drain_deadline_at is not None,
            unstable=node.status == NodeStatus.READY and _is_new(node),
            damped_seconds=max(0.0, (node.damped_until - node.now).total_seconds()) if node.damped_until else 0.0,
            silent_seconds=_silent(node),
            labels=node.labels,
            engines=tuple(node.engines),
            gpus=tuple(sorted(cards.get(node.pk, ()), key=lambda gpu: (gpu.index, gpu.pk))),
            ports=tuple(ports.get(node.pk, ())),
            mgmt_addr=node.mgmt_addr,
            holds_models=frozenset(files.get(node.pk, ())),
            shards=busy.get(node.pk, 0),
        )
        for node in rows
    )


def _is_new(node: Any) -> bool:
    since = ages.age(node.status_at, node.now)
    return since is not None and since < SETTLED_AFTER


def _files(scope: Collection[int] | None) -> Mapping[int, set[int]]:
    """Node → models that were ready there once: their files are there, as far as is known."""
    found: dict[int, set[int]] = defaultdict(set)
    served = Shard.objects.filter(Q(state=ShardState.READY) | ~Q(endpoint=""))
    if scope is not None:
        served = served.filter(replica__model__in=scope)
    for node, model in served.order_by().values_list("node_id", "replica__model_id").distinct():
        found[node].add(model)
    return found


def _ports(adapters: QuerySet[Adapter]) -> Mapping[int, list[PortView]]:
    found: dict[int, list[PortView]] = defaultdict(list)
    told = adapters.annotate(problems_text=Cast("problems", TextField()))
    rows = told.order_by("hca", "port").values_list(*_PORT_FIELDS)
    for node, hca, port, fabric, state, problems, netdev, link_layer, gid_index, address in rows:
        found[node].append(
            PortView(
                hca=hca,
                port=port,
                fabric=fabric or "",
                active=state in ACTIVE,
                problem=_first_text(_list(problems)),
                netdev=netdev,
                ethernet=link_layer == "Ethernet",
                gid_index=gid_index,
                address=address,
            )
        )
    return found


def _silent(node: Any) -> float | None:
    return None if node.last_seen_at is None else max(0.0, (node.now - node.last_seen_at).total_seconds())


def _cards(gpus: QuerySet[Gpu], holders: Mapping[int, tuple[str, int]]) -> Mapping[int, list[GpuView]]:
    """By node. `holders`: card → who holds it, and which attempt of it."""
    found: dict[int, list[GpuView]] = defaultdict(list)
    told = gpus.annotate(**{f"{name}_text": Cast(name, TextField()) for name in ("mig", "problems", "processes")})
    told = told.annotate(orphans_text=Cast("node__orphans", TextField()))
    for row in told.order_by().values_list(*_GPU_FIELDS):
        found[row[1]].append(_gpu(row, holders.get(row[0], _NOBODY)))
    return found


@lru_cache(maxsize=65_536)
def _gpu(row: tuple[Any, ...], held: tuple[str, int]) -> GpuView:
    """Cards are many, and from one look to the next hardly any has changed."""
    pk, node, uuid, index, gpu_class, total, used, capability, domain, spans_nodes, *more = row
    mig, placeable, present, problems, told, schedulable, cordon_reason, orphans = more
    processes, unclaimed = _list(told), [] if held[0] else _list(orphans)
    # What is ours on a card that nobody claims ends soon, or is an engine that no replica claims while one is there.
    foreign = [each for each in processes if each.get("foreign", True) or unclaimed]
    sizes = [each["memory_mib"] for each in foreign if isinstance(each.get("memory_mib"), int)]
    first = who(foreign[0], unclaimed) if foreign else _engine(uuid, unclaimed)
    return GpuView(
        pk=pk,
        uuid=uuid,
        index=index if index is not None else -1,
        gpu_class=gpu_class,
        memory_total_mib=total,
        memory_used_mib=_used_by_others(used, () if unclaimed else processes),
        compute_capability=capability,
        domain=domain if not domain or spans_nodes else f"{node}/{domain}",
        usable=present and placeable,
        problem=_first_text(_list(problems)) if present else "is gone",
        mig=mig is not None and mig != "null",
        schedulable=schedulable,
        cordon_reason=cordon_reason,
        holder=held[0],
        holder_attempt=held[1],
        foreign="" if held[0] else first,
        foreign_mib=sum(sizes) if foreign and len(sizes) == len(foreign) else None,
    )


def _list(text: str) -> list[dict[str, Any]]:
    """Of JSON, which is nearly always an empty list: a fleet has many cards, so it is read only where it is not."""
    if text == "[]":
        return []
    found = json.loads(text)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _first_text(problems: list[dict[str, Any]]) -> str:
    return str(problems[0].get("text", "")) if problems else ""


def who(process: dict[str, Any], orphans: list[dict[str, Any]]) -> str:
    """A process on a card that no replica has. `orphans`: engines on its node that no replica claims."""
    pid = process.get("pid")
    if process.get("foreign", True):
        return f"{process.get('name') or 'a process'} (pid {pid})"
    # An agent tells an engine's leader, and on the card may be a process that this has started.
    one = [each for each in orphans if pid in each["pids"]] or orphans
    names = f"{one[0]['shard']} attempt {one[0]['attempt']}" if len(one) == 1 else f"one of {len(one)}"
    return f"an engine that no replica claims ({names}, pid {pid})"


def _engine(card: str, orphans: list[dict[str, Any]]) -> str:
    """Of those, the one that was given this card; it is there although no process was seen on it, or not yet."""
    one = next((each for each in orphans if card in each.get("gpus", ())), None)
    return f"an engine that no replica claims ({one['shard']} attempt {one['attempt']})" if one else ""


def _used_by_others(used: int | None, processes: Iterable[dict[str, Any]]) -> int | None:
    """Without what engines of ours held at the last look: they have ended where the card is not claimed any more."""
    ours = [each.get("memory_mib") for each in processes if not each.get("foreign", True)]
    if used is None or any(not isinstance(size, int) for size in ours):
        return None
    return max(0, used - sum(size for size in ours if isinstance(size, int)))
