"""The home page: what needs a person is apart from what is in hand, and no card is painted better than it is."""

from datetime import UTC, datetime, timedelta

from agent_client.profile import parse_profile
from agent_client.protocol.states import ShardState
from fleet.domain.overview import CardUse, Overview
from fleet.domain.overview import overview as at
from fleet.domain.states import NodeStatus, ReplicaState, ReplicaWish, RolloutState
from fleet.domain.types import (
    FleetSnapshot,
    GpuView,
    ModelView,
    NodeView,
    PortView,
    ReplicaView,
    RolloutView,
    ShardView,
)

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


def overview(snapshot: FleetSnapshot, **given: object) -> Overview:
    return at(snapshot, now=NOW, **given)  # type: ignore[arg-type]


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
    soon = NOW + timedelta(seconds=40)
    (item,) = overview(fleet([node()], replica(1, ReplicaState.FAILED, next_try_at=soon, reason="no"))).needs_you
    assert item.following == "tried again by itself in 40 s"
    assert item.acts == (("retry", "Try again now"),)
    (item,) = overview(fleet([node()], replica(1, ReplicaState.FAILED, next_try_at=NOW, reason="no"))).needs_you
    assert item.following == "the next try is due now"


def test_lost_needs_a_person_and_unreachable_does_not() -> None:
    lost, quiet = node("a", NodeStatus.LOST, silent_seconds=301.0), node("b", NodeStatus.UNREACHABLE)
    found = overview(fleet([lost, quiet]))
    assert [(i.title, i.text) for i in found.needs_you] == [("a is lost", "silent for 5 min 1 s")]
    assert [i.title for i in found.in_hand] == ["b is unreachable"]
    silent = fleet([node("b", NodeStatus.UNREACHABLE, silent_seconds=200.0)])
    (item,) = overview(silent, lost_after=300.0).in_hand
    assert item.following == "its engines stay routable; if it stays silent it counts as lost in 1 min 40 s"
    (item,) = overview(silent, lost_after=None).in_hand
    assert item.following.endswith("it is not declared lost while evictions are held")


def test_a_node_without_cards_says_how_much_runs_there() -> None:
    given = {"epoch": 1, "node": 1, "wanted": True, "rank": 0}
    runs = ShardView(pk=1, state=ShardState.READY, **given)  # type: ignore[arg-type]
    ended = ShardView(pk=2, state=ShardState.STOPPED, **given)  # type: ignore[arg-type]
    (tile,) = overview(fleet([node()], replica(1, ReplicaState.READY, shards=(runs, ended)))).groups[0].nodes
    assert tile.hosts == "CPU, 1 copy"
    (tile,) = overview(fleet([node()])).groups[0].nodes
    assert tile.hosts == "CPU"


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
    (tile,) = found.groups[0].nodes
    uses = [[card.use for card in domain] for domain in tile.domains]
    assert uses[0] == [CardUse.SERVING, CardUse.STARTING]
    assert uses[1] == [CardUse.FREE, CardUse.SICK, CardUse.FOREIGN, CardUse.CORDONED]
    assert tile.free == 1
    assert "gpu-01 GPU 3 can't be used" in [item.title for item in found.needs_you]
    silent = overview(fleet([node(status=NodeStatus.UNREACHABLE, gpus=tuple(cards))]))
    assert {card.use for domain in silent.groups[0].nodes[0].domains for card in domain} == {CardUse.SILENT}


def test_a_card_opens_its_holder_and_a_split_one_is_no_trouble() -> None:
    cards = (gpu(0, holder="m/1"), gpu(1, usable=False), gpu(2, mig=True))
    found = overview(fleet([node(gpus=cards)], replica(1, ReplicaState.READY)))
    assert found.needs_you == ()
    (domain,) = found.groups[0].nodes[0].domains
    assert [(card.use, card.replica) for card in domain] == [
        (CardUse.SERVING, 1),
        (CardUse.SPLIT, None),
        (CardUse.FREE, None),
    ]
    assert [figure.value for figure in found.figures] == ["1 of 1", "1 of 2", "0", "1 of 1"]


def test_nodes_are_grouped_by_fabric_and_those_on_none_come_last() -> None:
    port = PortView(hca="mlx5_0", port=1, fabric="ib", active=True)
    found = overview(FleetSnapshot(nodes=(node("a"), node("b", ports=(port,), gpus=(gpu(0),)))))
    assert [(group.fabric, [n.name for n in group.nodes], group.free) for group in found.groups] == [
        ("ib", ["b"], 1),
        ("", ["a"], 0),
    ]


def test_a_rollout_under_way_is_in_hand_and_a_paused_one_needs_a_person() -> None:
    new, old = replica(1, ReplicaState.READY, revision=2), replica(2, ReplicaState.READY)
    for state, place in ((RolloutState.ROLLING, "in_hand"), (RolloutState.PAUSED, "needs_you")):
        rollout = RolloutView(pk=7, target=2, state=state)
        model = ModelView(pk=1, name="m", replicas=2, revision=2, profile=PROFILE, rollout=rollout)
        found = overview(FleetSnapshot(nodes=(node(),), models=(model,), replicas=(new, old)))
        (item,) = getattr(found, place)
        assert (item.kind, item.pk, item.text) == ("rollout", 7, "1 of 2 copies run it")


def test_a_drain_says_what_is_left_and_until_when() -> None:
    shard = ShardView(
        pk=1,
        rank=0,
        epoch=1,
        node=1,
        state=ShardState.READY,
        wanted=True,
        evacuate_at=NOW + timedelta(minutes=5),
    )
    drained = node(draining=True, schedulable=False, cordon_reason="fan")
    (item,) = overview(fleet([drained], replica(1, ReplicaState.READY, shards=(shard,)))).in_hand
    assert item.title == "gpu-01 is being drained: fan"
    assert item.text == "1 replica still there (m/1)"
    assert item.following == "what is still there is stopped in 5 min 0 s"


def test_how_far_a_start_has_come_is_told() -> None:
    found = overview(
        fleet([node()], replica(1, ReplicaState.STARTING, reason="loading on a")), loading={1: "weights, 71%"}
    )
    assert found.in_hand[0].text == "loading on a: weights, 71%"
