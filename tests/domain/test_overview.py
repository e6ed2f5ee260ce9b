"""The home page: what needs a person is apart from what is in hand, and no card is painted better than it is."""

from datetime import UTC, datetime

from agent_client.profile import parse_profile
from fleet.domain.overview import CardUse, overview
from fleet.domain.states import NodeStatus, ReplicaState, ReplicaWish
from fleet.domain.types import FleetSnapshot, GpuView, ModelView, NodeView, ReplicaView

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PROFILE = parse_profile({"engine": "vllm", "model": "org/m", "gpu_class": "l4-24gb"})


def gpu(index: int, **fields: object) -> GpuView:
    return GpuView(pk=index, uuid=f"g{index}", index=index, gpu_class="l4-24gb", **fields)  # type: ignore[arg-type]


def node(name: str = "gpu-01", status: NodeStatus = NodeStatus.READY, **fields: object) -> NodeView:
    return NodeView(pk=1, name=name, status=status, **fields)  # type: ignore[arg-type]


def replica(number: int, state: ReplicaState, **fields: object) -> ReplicaView:
    given = {"wish": ReplicaWish.RUN, "attempt": 1, "revision": 1, "created_at": NOW, "model": 1, **fields}
    return ReplicaView(pk=number, label=f"m/{number}", number=number, state=state, **given)  # type: ignore[arg-type]


def fleet(nodes: list[NodeView], *replicas: ReplicaView) -> FleetSnapshot:
    model = ModelView(pk=1, name="m", replicas=len(replicas), revision=1, profile=PROFILE)
    return FleetSnapshot(nodes=tuple(nodes), models=(model,), replicas=replicas)


def test_all_is_well() -> None:
    found = overview(fleet([node()], replica(1, ReplicaState.READY)))
    assert found.sentence == "All is well: every model has what it wants on 1 node."
    assert found.needs_you == found.in_hand == ()
    assert overview(FleetSnapshot()).sentence == "No machine has joined yet."


def test_equal_troubles_of_one_model_are_one_thing() -> None:
    stuck = [replica(n, ReplicaState.PENDING, reason="0 of 1 fit", explanation_text="0 of 1 fit") for n in (1, 2)]
    found = overview(fleet([node()], *stuck, replica(3, ReplicaState.STARTING, reason="loading")))
    assert found.sentence == "One thing needs you. One thing is being taken care of."
    assert [item.title for item in found.needs_you] == ["m/1, /2 cannot be placed"]
    assert [item.title for item in found.in_hand] == ["m/3 is starting"]


def test_a_failed_copy_says_when_it_is_tried_again() -> None:
    (item,) = overview(fleet([node()], replica(1, ReplicaState.FAILED, next_try_at=NOW, reason="no"))).needs_you
    assert item.following == "tried again at 03:04:05 UTC"


def test_lost_needs_a_person_and_unreachable_does_not() -> None:
    lost, quiet = node("a", NodeStatus.LOST, silent_seconds=301.0), node("b", NodeStatus.UNREACHABLE)
    found = overview(fleet([lost, quiet]))
    assert [(i.title, i.text) for i in found.needs_you] == [("a is lost", "silent for 5 min 1 s")]
    assert [i.title for i in found.in_hand] == ["b is unreachable"]


def test_each_card_shows_what_it_is() -> None:
    cards = [
        gpu(0, holder="m/1", domain="a"),
        gpu(1, holder="m/2", domain="a"),
        gpu(2, domain="b"),
        gpu(3, domain="b", usable=False, problem="fell off the bus"),
        gpu(4, domain="b", foreign="python (pid 4)"),
        gpu(5, domain="b", schedulable=False),
    ]
    ready, starting = replica(1, ReplicaState.READY), replica(2, ReplicaState.STARTING)
    found = overview(fleet([node(gpus=tuple(cards))], ready, starting))
    (tile,) = found.nodes
    uses = [[card.use for card in domain] for domain in tile.domains]
    assert uses[0] == [CardUse.SERVING, CardUse.STARTING]
    assert uses[1] == [CardUse.FREE, CardUse.SICK, CardUse.FOREIGN, CardUse.CORDONED]
    assert tile.free == 1
    assert "gpu-01 GPU 3 can't be used" in [item.title for item in found.needs_you]
    silent = overview(fleet([node(status=NodeStatus.UNREACHABLE, gpus=tuple(cards))]))
    assert {card.use for domain in silent.nodes[0].domains for card in domain} == {CardUse.SILENT}
