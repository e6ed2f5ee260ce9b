"""A fleet written straight into the database, as reports and reconcile would have left it, and what a tick costs."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import django

django.setup()  # before any model is imported

# ruff: noqa: E402
from django.core.management import call_command
from django.db import connection
from django.utils import timezone

from agent_client.protocol.states import ShardState
from fleet.domain.states import NodeStatus, ReplicaState
from fleet.models import CatalogModel, Gpu, GpuClaim, Node, ProfileRevision, Replica, Shard
from fleet.services import reconciler, replicas
from fleet.services.transitions import move_shard

CARDS, MODELS, PENDING = 8, 30, 1000
TIMES = 7
PROFILE = {"engine": "vllm", "model": "/m", "tensor_parallel": 4, "gpu_class": ["h100-sxm-80gb"]}
SMALL = {"engine": "vllm", "model": "/s", "gpu_class": ["h100-sxm-80gb"]}


def fill(nodes: int, copies: int) -> None:
    now = timezone.now()
    long_ago = now - timezone.timedelta(days=1)
    Node.objects.bulk_create(
        Node(
            name=f"gpu-{i:05}",
            status=NodeStatus.READY,
            engines={"vllm": ""},
            mgmt_addr=f"10.{i // 65536}.{i // 256 % 256}.{i % 256}",
            last_seen_at=now,
            connected=True,
            inventory={"domains": [{"id": "d0", "kind": "switch"}]},
        )
        for i in range(nodes)
    )
    Node.objects.update(status_at=long_ago)
    rows = list(Node.objects.order_by("pk"))
    Gpu.objects.bulk_create(
        [
            Gpu(
                node=node,
                uuid=f"GPU-{node.pk}-{i}",
                index=i,
                gpu_class="h100-sxm-80gb",
                memory_total_mib=81_559,
                memory_used_mib=5,
                domain="d0",
            )
            for node in rows
            for i in range(CARDS)
        ],
        batch_size=2000,
    )
    models = [CatalogModel.objects.create(name=f"m{i:02}", profile=PROFILE, replicas=0) for i in range(MODELS)]
    revisions = [ProfileRevision.objects.create(model=m, number=1, profile=PROFILE) for m in models]
    Replica.objects.bulk_create(
        [
            Replica(
                model=models[i % MODELS],
                number=i // MODELS + 1,
                revision=revisions[i % MODELS],
                state=ReplicaState.READY,
                attempt=1,
                endpoint="http://10.0.0.1:20000",
                engine_key=str(i),
            )
            for i in range(copies)
        ],
        batch_size=2000,
    )
    for model in models:
        CatalogModel.objects.filter(pk=model.pk).update(replicas=Replica.objects.filter(model=model).count())
    placed = list(Replica.objects.order_by("pk"))
    Shard.objects.bulk_create(
        [
            Shard(replica=r, node=rows[i // 2], epoch=1, state=ShardState.READY, endpoint="http://10.0.0.1:20000")
            for i, r in enumerate(placed)
        ],
        batch_size=2000,
    )
    cards: dict[int, list[Gpu]] = {}
    for gpu in Gpu.objects.order_by("node_id", "index"):
        cards.setdefault(gpu.node_id, []).append(gpu)
    GpuClaim.objects.bulk_create(
        [
            GpuClaim(gpu=gpu, shard=shard)
            for i, shard in enumerate(Shard.objects.order_by("pk"))
            for gpu in cards[shard.node_id][i % 2 * 4 : i % 2 * 4 + 4]
        ],
        batch_size=2000,
    )


def took(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the wall's clock, and of this process's processor: machines are shared."""
    began, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - used


def median(times: list[tuple[float, float]]) -> tuple[float, float]:
    walls, used = zip(*times, strict=True)
    return sorted(walls)[len(times) // 2], sorted(used)[len(times) // 2]


def tick(*, whole: bool = True) -> int:
    done = reconciler.run(holder="benchmark", now=timezone.now(), whole=whole)
    assert done is not None
    return done


def idle(*, whole: bool) -> tuple[float, float]:
    assert tick() == 0
    return median([took(lambda: tick(whole=whole)) for _ in range(TIMES)])


def one_ended() -> tuple[float, float]:
    """A shard is seen to have ended; its replica is placed again and its order written. All others are settled."""
    times = []
    for _ in range(TIMES):
        shard = Shard.objects.filter(state=ShardState.READY).select_related("replica").first()
        assert shard is not None

        def handle(shard: Shard = shard) -> None:
            move_shard(shard.pk, ShardState.STOPPED)
            replicas.recompute(shard.replica_id, now=timezone.now())
            tick(whole=False)

        times.append(took(handle))
        again = Shard.objects.get(replica=shard.replica_id, state=ShardState.ASSIGNED)
        move_shard(again.pk, ShardState.READY, endpoint="http://10.0.0.1:20000")
        replicas.recompute(shard.replica_id, now=timezone.now())
    return median(times)


def many_pending() -> tuple[float, float]:
    model = CatalogModel.objects.create(name="small", profile=SMALL, replicas=PENDING)
    revision = ProfileRevision.objects.create(model=model, number=1, profile=SMALL)
    Replica.objects.bulk_create(
        Replica(model=model, number=i + 1, revision=revision, engine_key=str(i)) for i in range(PENDING)
    )
    found = took(tick)
    assert Replica.objects.filter(model=model, attempt=1).count() == PENDING
    return found


def main() -> None:
    nodes, copies = int(sys.argv[1]), int(sys.argv[2])
    call_command("migrate", verbosity=0)
    fill(nodes, copies)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    out = {"idle": idle(whole=True), "hurried": idle(whole=False), "ended": one_ended()}
    if nodes * CARDS - copies * 4 >= PENDING:
        out["pending"] = many_pending()
    print(json.dumps(out))


if __name__ == "__main__":
    main()
