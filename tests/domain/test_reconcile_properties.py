"""What holds whatever happens: random fleets under random faults, drains, rollouts and scalings."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_client.protocol.states import ShardState
from fleet.domain.rendezvous import ports_in_use
from fleet.domain.settled import unsettled
from fleet.domain.states import NodeStatus, ReplicaState
from fleet.domain.types import FleetSnapshot
from tests.domain.world import GONE, World, profile
from tests.support.examples import examples

EVENTS = ("tick", "obey", "wait", "fail", "lose", "find", "drain", "undrain", "scale", "roll", "restart")


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World()
    for cards in draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)):
        world.add_node(cards)
    for _ in range(draw(st.integers(1, 3))):
        cards = draw(st.integers(1, 2))
        world.add_model(draw(st.integers(0, 3)), profile(cards=cards, nodes=draw(st.sampled_from((1, 1, 2)))))
    return world


def happen(world: World, event: str, draw: st.DataObject) -> None:
    """The world itself refuses a second claim and a second live attempt."""
    node = world.nodes[draw.draw(st.sampled_from(sorted(world.nodes)))]
    model = draw.draw(st.sampled_from(sorted(world.models)))
    alive = [pk for pk, shard in world.shards.items() if shard.state not in GONE]
    match event:
        case "tick":
            world.tick()
        case "obey":
            world.obey(set(draw.draw(st.lists(st.sampled_from(alive), max_size=3))) if alive else set())
        case "wait":
            world.now += timedelta(seconds=draw.draw(st.sampled_from((1, 15, 700))))
        case "fail" if alive:
            world.move(draw.draw(st.sampled_from(alive)), ShardState.FAILED)
        case "lose" if node.status is NodeStatus.READY:
            world.lose(node.pk)
        case "find" if node.status is NodeStatus.LOST:
            world.find_back(node.pk)
        case "drain":
            world.leaving[node.pk] = world.now + timedelta(seconds=draw.draw(st.sampled_from((0, 30, 3600))))
        case "undrain":
            world.leaving.pop(node.pk, None)
            world.nodes[node.pk] = replace(node, schedulable=True)
        case "scale":
            world.change(model, replicas=draw.draw(st.integers(0, 3)))
        case "roll" if world.models[model].rollout is None:
            old = world.models[model].profile
            assert old is not None
            target = world.roll_out(model, replace(old, max_model_len=1000 + world.models[model].revision))
            if draw.draw(st.booleans()):
                draw.draw(st.sampled_from((world.bad, world.unfit))).add(target)
        case "restart" if world.replicas:
            pk = draw.draw(st.sampled_from(sorted(world.replicas)))
            world.replicas[pk] = replace(world.replicas[pk], restart_requested=True)


@settings(max_examples=examples(50), deadline=None)
@given(worlds(), st.lists(st.sampled_from(EVENTS), max_size=25), st.data())
def test_whatever_happens_it_settles_and_then_nothing_is_left_to_do(
    world: World, events: list[str], data: st.DataObject
) -> None:
    for event in events:
        happen(world, event, data)
    for node in list(world.nodes):
        if world.nodes[node].status is NodeStatus.LOST:
            world.find_back(node)
    world.bad.clear()  # faults end
    world.now += timedelta(hours=2)
    world.settle(seconds=20, rounds=200)
    assert world.decide() == ()
    for model in world.models.values():
        rows = [each for each in world.replicas.values() if each.model == model.pk]
        assert len(rows) == model.replicas
        for row in rows:
            assert world.state(row.pk) is ReplicaState.READY or row.explanation_text


@settings(max_examples=examples(40), deadline=None)
@given(worlds(), st.lists(st.sampled_from(EVENTS), max_size=15), st.data())
def test_the_order_of_rows_changes_nothing(world: World, events: list[str], data: st.DataObject) -> None:
    for event in events:
        happen(world, event, data)
    seen = world.snapshot()
    turned = FleetSnapshot(
        nodes=tuple(reversed(seen.nodes)),
        models=tuple(reversed(seen.models)),
        replicas=tuple(replace(r, shards=tuple(reversed(r.shards))) for r in reversed(seen.replicas)),
        draining=tuple(reversed(seen.draining)),
    )
    assert set(map(repr, world.decide(seen))) == set(map(repr, world.decide(turned)))


@settings(max_examples=examples(40), deadline=None)
@given(worlds(), st.data())
def test_a_drain_never_drops_below_what_served_before_its_deadline(world: World, data: st.DataObject) -> None:
    world.settle()
    before = {model: world.ready(model) for model in world.models}
    for node in data.draw(st.lists(st.sampled_from(sorted(world.nodes)), min_size=1, max_size=2, unique=True)):
        world.leaving[node] = world.now + timedelta(hours=1)
    for _ in range(60):
        actions = world.tick()
        assert all(world.ready(model) >= count for model, count in before.items())
        if not (world.obey() or actions):
            break
        world.now += timedelta(seconds=1)
    world.now += timedelta(hours=1)
    world.settle()
    assert not world.leaving


@settings(max_examples=examples(60), deadline=None)
@given(worlds(), st.lists(st.sampled_from(EVENTS), max_size=8), st.data())
def test_without_what_is_settled_the_same_is_decided(world: World, events: list[str], data: st.DataObject) -> None:
    world.settle()
    for event in events:
        happen(world, event, data)
    seen = world.snapshot()
    scope = unsettled(seen)
    left_out = [replica for replica in seen.replicas if replica.model not in scope]
    narrow = replace(
        seen,
        replicas=tuple(replica for replica in seen.replicas if replica.model in scope),
        scope=scope,
        meeting_points=frozenset(ports_in_use(left_out)),
    )
    assert world.decide(narrow) == world.decide(seen)
