"""Rows → FleetSnapshot, in a fixed number of queries whatever the size of the fleet."""

from collections import defaultdict
from datetime import timedelta
from typing import Any

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from agent_client.engines.causes import NODE_LOCAL_CAUSES
from agent_client.profile import Profile, ProfileError, parse_profile
from agent_client.protocol.states import ENDED_SHARD_STATES, NODE_LOCAL_FAILURES, ShardState
from fleet.domain.states import NodeStatus, ReplicaState, ReplicaWish
from fleet.domain.types import FleetSnapshot, GpuView, ModelView, NodeView, PortView, ReplicaView, ShardView
from fleet.models import Adapter, CatalogModel, Gpu, GpuClaim, Node, Replica, Shard

#: After a failure with one of these another node is tried once.
NODE_LOCAL = frozenset(NODE_LOCAL_FAILURES) | NODE_LOCAL_CAUSES


#: Placement prefers nodes that have been back for longer (flap damping, DESIGN.md section 3).
SETTLED_AFTER = timedelta(seconds=60)


def load(*, node: int | None = None) -> FleetSnapshot:
    """A fixed number of queries. `node`: only that one, with the replicas that have shards there; no models."""
    here = Q() if node is None else Q(node=node)
    shards = list(
        Shard.objects.filter(here)
        .exclude(state__in=ENDED_SHARD_STATES)
        .values_list("pk", "rank", "epoch", "node_id", "state", "wanted", "replica_id", "pids")
    )
    newest = Shard.objects.filter(here, state__in=ENDED_SHARD_STATES, epoch__gt=0).filter(_newest_attempt())
    shards += list(newest.values_list("pk", "rank", "epoch", "node_id", "state", "wanted", "replica_id", "pids"))
    by_replica: dict[int, list[ShardView]] = defaultdict(list)
    per_node: dict[int, int] = defaultdict(int)
    for pk, rank, epoch, at, word, wanted, replica, pids in shards:
        state = ShardState(word)
        held = tuple(pid for pid in pids if isinstance(pid, int))
        by_replica[replica].append(
            ShardView(pk=pk, rank=rank, epoch=epoch, node=at, state=state, wanted=wanted, pids=held)
        )
        per_node[at] += state not in ENDED_SHARD_STATES
    if node is not None:
        rows = Replica.objects.filter(pk__in=by_replica)
        return FleetSnapshot(nodes=_nodes(per_node, node), replicas=_replicas(rows, by_replica))
    return FleetSnapshot(
        nodes=_nodes(per_node), models=_models(), replicas=_replicas(Replica.objects.all(), by_replica)
    )


def _newest_attempt() -> Q:
    return Q(epoch=F("replica__attempt"))


def _nodes(per_node: dict[int, int], only: int | None = None) -> tuple[NodeView, ...]:
    of_node, of_card = (Q(), Q()) if only is None else (Q(node=only), Q(gpu__node=only))
    holders = {
        gpu: (f"{model}/{number}", epoch)
        for gpu, model, number, epoch in GpuClaim.objects.filter(of_card, released_at__isnull=True).values_list(
            "gpu_id", "shard__replica__model__name", "shard__replica__number", "shard__epoch"
        )
    }
    # An inventory is large; of it only the domains are read, which alone tell a rack's from a node's own.
    rows = list(
        Node.objects.annotate(now=Now(), domains=F("inventory__domains"))
        .defer("inventory", "past_boots")
        .order_by("name")
    )
    racks = {node.pk: _racks(node.domains) for node in rows}
    gpus: dict[int, list[GpuView]] = defaultdict(list)
    for gpu in Gpu.objects.filter(of_node).defer("name", "bus", "numa"):
        holder, attempt = holders.get(gpu.pk, ("", 0))
        gpus[gpu.node_id].append(_gpu(gpu, holder, attempt, racks.get(gpu.node_id, frozenset())))
    ports: dict[int, list[PortView]] = defaultdict(list)
    for adapter in Adapter.objects.filter(of_node, present=True).select_related("fabric").order_by("hca", "port"):
        ports[adapter.node_id].append(_port(adapter))
    files = _files()
    return tuple(
        NodeView(
            pk=node.pk,
            name=node.name,
            status=NodeStatus(node.status),
            schedulable=node.schedulable,
            cordon_reason=node.cordon_reason,
            draining=node.drain_deadline_at is not None,
            unstable=node.status == NodeStatus.READY and (node.now - node.status_at) < SETTLED_AFTER,
            silent_seconds=_silent(node),
            labels=node.labels,
            engines=tuple(node.engines),
            gpus=tuple(sorted(gpus[node.pk], key=lambda gpu: (gpu.index, gpu.pk))),
            ports=tuple(ports[node.pk]),
            mgmt_addr=node.mgmt_addr,
            holds_models=frozenset(files[node.pk]),
            shards=per_node.get(node.pk, 0),
        )
        for node in rows
    )


def _files() -> dict[int, set[int]]:
    """Node → models that were ready there once: their files are there, as far as is known."""
    found: dict[int, set[int]] = defaultdict(set)
    served = Shard.objects.filter(Q(state=ShardState.READY) | ~Q(endpoint=""))
    for node, model in served.order_by().values_list("node_id", "replica__model_id").distinct():
        found[node].add(model)
    return found


def _racks(domains: Any) -> frozenset[str]:
    """Ids of NVLink domains that span nodes; the id of any other means something on its node alone."""
    listed = domains if isinstance(domains, list) else []
    return frozenset(str(each.get("id")) for each in listed if isinstance(each, dict) and each.get("kind") == "rack")


def _port(adapter: Adapter) -> PortView:
    return PortView(
        hca=adapter.hca,
        port=adapter.port,
        fabric=adapter.fabric.name if adapter.fabric else "",
        active=adapter.state in ("ACTIVE", "ACTIVE_DEFER"),
        problem=next((str(p.get("text", "")) for p in adapter.problems if isinstance(p, dict)), ""),
        netdev=adapter.netdev,
        ethernet=adapter.link_layer == "Ethernet",
        gid_index=adapter.gid_index,
    )


def _silent(node: Any) -> float | None:
    return None if node.last_seen_at is None else max(0.0, (node.now - node.last_seen_at).total_seconds())


def _gpu(gpu: Gpu, holder: str, attempt: int, racks: frozenset[str]) -> GpuView:
    problem = next((str(p.get("text", "")) for p in gpu.problems if isinstance(p, dict)), "")
    processes = [each for each in gpu.processes if isinstance(each, dict)]
    foreign = [each for each in processes if each.get("foreign", True)]
    sizes = [each["memory_mib"] for each in foreign if isinstance(each.get("memory_mib"), int)]
    first = "" if holder or not foreign else f"{foreign[0].get('name') or 'a process'} (pid {foreign[0].get('pid')})"
    return GpuView(
        pk=gpu.pk,
        uuid=gpu.uuid,
        index=gpu.index if gpu.index is not None else -1,
        gpu_class=gpu.gpu_class,
        memory_total_mib=gpu.memory_total_mib,
        memory_used_mib=_used_by_others(gpu.memory_used_mib, processes),
        compute_capability=gpu.compute_capability,
        domain=gpu.domain if not gpu.domain or gpu.domain in racks else f"{gpu.node_id}/{gpu.domain}",
        usable=gpu.present and gpu.placeable,
        problem=problem if gpu.present else "is gone",
        mig=gpu.mig is not None,
        schedulable=gpu.schedulable,
        cordon_reason=gpu.cordon_reason,
        holder=holder,
        holder_attempt=attempt,
        foreign=first,
        foreign_mib=sum(sizes) if foreign and len(sizes) == len(foreign) else None,
    )


def _used_by_others(used: int | None, processes: list[dict[str, Any]]) -> int | None:
    """Without what engines of ours held at the last look: they have ended where the card is not claimed any more."""
    ours = [each.get("memory_mib") for each in processes if not each.get("foreign", True)]
    if used is None or any(not isinstance(size, int) for size in ours):
        return None
    return max(0, used - sum(size for size in ours if isinstance(size, int)))


def _models() -> tuple[ModelView, ...]:
    out = []
    for model in CatalogModel.objects.filter(profile__isnull=False):
        profile: Profile | None = None
        error = ""
        try:
            profile = parse_profile(model.profile)
        except ProfileError as wrong:
            error = str(wrong)
        out.append(
            ModelView(
                pk=model.pk,
                name=model.name,
                replicas=model.replicas,
                revision=model.revision,
                profile=profile,
                profile_error=error,
            )
        )
    return tuple(out)


def _replicas(rows: QuerySet[Replica], shards: dict[int, list[ShardView]]) -> tuple[ReplicaView, ...]:
    names = dict(Node.objects.values_list("name", "pk"))
    out = []
    for replica in rows.select_related("model", "revision"):
        failure = replica.latest_failure or {}
        local = failure.get("code") in NODE_LOCAL and failure.get("attempt") == replica.attempt
        out.append(
            ReplicaView(
                pk=replica.pk,
                label=replica.label,
                model=replica.model_id,
                number=replica.number,
                wish=ReplicaWish(replica.wish),
                state=ReplicaState(replica.state),
                attempt=replica.attempt,
                revision=replica.revision.number,
                created_at=replica.created_at,
                next_try_at=replica.next_try_at,
                restart_requested=replica.restart_requested,
                explanation_text=(replica.explanation or {}).get("text", ""),
                reason=replica.reason,
                avoid_node=names.get(str(failure.get("node"))) if local else None,
                shards=tuple(sorted(shards.get(replica.pk, []), key=lambda s: (s.epoch, s.rank))),
            )
        )
    return tuple(out)
