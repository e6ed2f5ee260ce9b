"""Rows → FleetSnapshot, in a fixed number of queries whatever the size of the fleet."""

from collections import defaultdict
from typing import Any

from django.db.models import F, Q
from django.db.models.functions import Now

from agent_client.engines.causes import NODE_LOCAL_CAUSES
from agent_client.profile import Profile, ProfileError, parse_profile
from agent_client.protocol.states import ENDED_SHARD_STATES, NODE_LOCAL_FAILURES, ShardState
from fleet.domain.states import NodeStatus, ReplicaState, ReplicaWish
from fleet.domain.types import FleetSnapshot, GpuView, ModelView, NodeView, PortView, ReplicaView, ShardView
from fleet.models import Adapter, CatalogModel, Gpu, GpuClaim, Node, Replica, Shard

#: After a failure with one of these another node is tried once.
NODE_LOCAL = frozenset(NODE_LOCAL_FAILURES) | NODE_LOCAL_CAUSES


def load() -> FleetSnapshot:
    """Seven queries."""
    shards = list(
        Shard.objects.exclude(state__in=ENDED_SHARD_STATES).values_list(
            "pk", "rank", "epoch", "node_id", "state", "wanted", "replica_id"
        )
    )
    newest = Shard.objects.filter(state__in=ENDED_SHARD_STATES, epoch__gt=0).filter(_newest_attempt())
    shards += list(newest.values_list("pk", "rank", "epoch", "node_id", "state", "wanted", "replica_id"))
    by_replica: dict[int, list[ShardView]] = defaultdict(list)
    per_node: dict[int, int] = defaultdict(int)
    for pk, rank, epoch, node, word, wanted, replica in shards:
        state = ShardState(word)
        by_replica[replica].append(ShardView(pk=pk, rank=rank, epoch=epoch, node=node, state=state, wanted=wanted))
        per_node[node] += state not in ENDED_SHARD_STATES
    return FleetSnapshot(nodes=_nodes(per_node), models=_models(), replicas=_replicas(by_replica))


def _newest_attempt() -> Q:
    return Q(epoch=F("replica__attempt"))


def _nodes(per_node: dict[int, int]) -> tuple[NodeView, ...]:
    holders = {
        gpu: f"{model}/{number}"
        for gpu, model, number in GpuClaim.objects.filter(released_at__isnull=True).values_list(
            "gpu_id", "shard__replica__model__name", "shard__replica__number"
        )
    }
    gpus: dict[int, list[GpuView]] = defaultdict(list)
    for gpu in Gpu.objects.all():
        gpus[gpu.node_id].append(_gpu(gpu, holders.get(gpu.pk, "")))
    ports: dict[int, list[PortView]] = defaultdict(list)
    for adapter in Adapter.objects.filter(present=True).select_related("fabric").order_by("hca", "port"):
        ports[adapter.node_id].append(_port(adapter))
    rows = Node.objects.annotate(now=Now()).order_by("name")
    return tuple(
        NodeView(
            pk=node.pk,
            name=node.name,
            status=NodeStatus(node.status),
            schedulable=node.schedulable,
            cordon_reason=node.cordon_reason,
            silent_seconds=_silent(node),
            labels=node.labels,
            engines=tuple(node.engines),
            gpus=tuple(sorted(gpus[node.pk], key=lambda gpu: (gpu.index, gpu.pk))),
            ports=tuple(ports[node.pk]),
            mgmt_addr=node.mgmt_addr,
            shards=per_node.get(node.pk, 0),
        )
        for node in rows
    )


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


def _gpu(gpu: Gpu, holder: str) -> GpuView:
    problem = next((str(p.get("text", "")) for p in gpu.problems if isinstance(p, dict)), "")
    foreign = ""
    process = next((p for p in gpu.processes if isinstance(p, dict) and p.get("foreign", True)), None)
    if not holder and process is not None:
        foreign = f"{process.get('name') or 'a process'} (pid {process.get('pid')})"
    return GpuView(
        pk=gpu.pk,
        uuid=gpu.uuid,
        index=gpu.index if gpu.index is not None else -1,
        gpu_class=gpu.gpu_class,
        memory_total_mib=gpu.memory_total_mib,
        memory_used_mib=gpu.memory_used_mib,
        compute_capability=gpu.compute_capability,
        domain=gpu.domain,
        usable=gpu.present and gpu.placeable,
        problem=problem if gpu.present else "is gone",
        schedulable=gpu.schedulable,
        holder=holder,
        foreign=foreign,
    )


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


def _replicas(shards: dict[int, list[ShardView]]) -> tuple[ReplicaView, ...]:
    names = dict(Node.objects.values_list("name", "pk"))
    out = []
    for replica in Replica.objects.select_related("model", "revision"):
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
