"""Replicas that take no card, over several nodes."""

from agent_client.profile import parse_profile
from fleet.domain.placement import Placement, place
from fleet.domain.reasons import Refusal
from fleet.domain.states import NodeStatus
from fleet.domain.types import FleetSnapshot, NodeView, PortView


def node(pk: int, *fabrics: str, active: bool = True, shards: int = 0) -> NodeView:
    ports = tuple(PortView(hca=f"mlx5_{n}", port=1, fabric=name, active=active) for n, name in enumerate(fabrics))
    return NodeView(
        pk=pk,
        name=f"cpu-{pk}",
        status=NodeStatus.READY,
        engines=("vllm",),
        ports=ports,
        mgmt_addr=f"10.0.0.{pk}",
        shards=shards,
    )


def found(*nodes: NodeView, of: int = 2) -> Placement | Refusal:
    profile = parse_profile({"engine": "vllm", "model": "/m", "gpus": 0, "tensor_parallel": 2, "nodes": of})
    return place(FleetSnapshot(nodes=nodes), profile)


def test_its_ranks_stand_on_nodes_of_one_fabric() -> None:
    placed = found(node(1, "east"), node(2, "west"), node(3, "east"), node(4))
    assert isinstance(placed, Placement)
    assert [(shard.rank, shard.node_name) for shard in placed.shards] == [(0, "cpu-1"), (1, "cpu-3")]
    assert (placed.fabric, placed.head_address) == ("east", "10.0.0.1")
    assert placed.shards[1].fabric_env["VLLM_HOST_IP"] == "10.0.0.3"
    assert placed.shards[1].fabric_env["NCCL_IB_HCA"] == "=mlx5_0:1"


def test_the_least_busy_nodes_of_a_fabric_are_taken() -> None:
    placed = found(node(1, "east", shards=3), node(2, "east"), node(3, "east"))
    assert isinstance(placed, Placement)
    assert placed.node_names == ("cpu-2", "cpu-3")


def test_a_port_that_is_down_is_no_way_to_the_others() -> None:
    refused = found(node(1, "east"), node(2, "east", active=False))
    assert isinstance(refused, Refusal)
    assert "cpu-1 has room, but 1 node on east has, 2 needed" in refused.text
    assert "cpu-2 has no active port on a fabric" in refused.text
