"""Identity and engines survive a new version; what differs from the plan is refused before anything starts."""

from datetime import timedelta

import pytest
from django.utils import timezone

from agent_client.protocol.messages import Register, ShardReport
from agent_client.protocol.states import ShardState
from fleet.domain.states import ReplicaState
from fleet.models import Command, Gpu, Node, Replica, Shard
from fleet.services import nodes, reconciler
from fleet.services.commands import wire_name
from tests.fleet.test_reconciler import gpu, make_ready, model, ready_node, register, tell, tick

pytestmark = pytest.mark.django_db


def test_an_upgraded_agent_is_the_same_node_with_the_same_cards_and_engines() -> None:
    admission = ready_node(cards=2)
    model()
    tick()
    shard = make_ready(admission)
    before = (Node.objects.get().pk, set(Gpu.objects.values_list("pk", "uuid")), Replica.objects.get().attempt)
    told = ShardReport(
        shard=wire_name(shard), epoch=shard.epoch, state=ShardState.READY, endpoint=shard.endpoint, pids=(1,)
    )
    upgraded = Register(
        protocol=1,
        agent_version="0.2.0",
        node_id="gpu-01",
        node_uid=admission.node_uid,
        credential=admission.credential,
        machine_id="machine-gpu-01",
        boot_id="boot-1",
        instance_id="another process",
        hostname="gpu-01",
        mgmt_addr="127.0.0.1",
        inventory={"gpus": [gpu(i, driver="a newer one tells more") for i in range(2)]},
        engines={"vllm": ""},
        shards=(told,),
    )
    again = nodes.register_node(message=upgraded, remote="127.0.0.1:2", now=timezone.now())
    nodes.verify_node(node_id=again.node_id, session_id=again.session_id, now=timezone.now())
    assert again.credential is None  # it keeps the one that it has
    node, replica = Node.objects.get(), Replica.objects.get()
    assert (node.pk, set(Gpu.objects.values_list("pk", "uuid")), replica.attempt) == before
    assert (node.agent_version, replica.state) == ("0.2.0", ReplicaState.READY)
    orders = Command.objects.count()
    assert tick() == 0
    assert Command.objects.count() == orders


def test_a_member_that_differs_from_the_plan_refuses_with_the_difference_and_another_node_is_tried() -> None:
    first = ready_node("gpu-01", cards=1)
    model()
    tick()
    second = register("gpu-02", cards=1, inventory={"gpus": [gpu(0, uuid="GPU-9")]})
    nodes.verify_node(node_id=second.node_id, session_id=second.session_id, now=timezone.now())
    difference = "cannot start qwen/1: GPU 0 (GPU-0) is a a10, h100-sxm-80gb is needed"
    tell(first, Shard.objects.get(), ShardState.FAILED, code="gpu_missing", detail=difference)
    replica = Replica.objects.get()
    assert (replica.state, replica.latest_failure["reason"]) == (ReplicaState.FAILED, difference)
    reconciler.run(holder="test", now=timezone.now() + timedelta(seconds=11))
    assert Shard.objects.get(epoch=2).node_id == second.node_id
