"""A doorbell's tick looks at what is not settled alone, and decides there what a tick over the whole fleet would."""

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from agent_client.protocol.states import ShardState
from fleet.domain.settled import unsettled
from fleet.domain.states import CommandKind, NodeStatus, ReplicaState, ReplicaWish, RolloutState
from fleet.models import CatalogModel, Command, Gpu, Node, ProfileRevision, Replica, Rollout, Shard
from fleet.services import reconciler
from fleet.services.transitions import move_node, move_replica, move_shard
from fleet.wishes import load_wishes
from tests.fleet.test_reconciler import make_ready, model, ready_node, tell, tick

pytestmark = pytest.mark.django_db


def hurry() -> int | None:
    return reconciler.run(holder="test", now=timezone.now(), whole=False)


def serving(*names: str, cards: int = 4, **profile: Any) -> Any:
    """A node on which one replica of each model is ready."""
    admission = ready_node(cards=cards)
    for name in names:
        model(name, **profile)
        tick()
        make_ready(admission)
    assert tick() == 0
    return admission


def scope() -> set[str]:
    wishes = load_wishes(unsettled_only=True)
    assert wishes.scope is not None
    return set(CatalogModel.objects.filter(pk__in=wishes.scope).values_list("name", flat=True))


def test_of_a_settled_fleet_no_replica_is_read() -> None:
    serving("a", "b")
    assert load_wishes(unsettled_only=True).replicas == ()
    assert hurry() == 0


def test_what_has_ended_is_placed_again_and_the_other_models_are_not_read() -> None:
    admission = serving("a", "b")
    shard = Shard.objects.get(replica__model__name="a")
    tell(admission, shard, ShardState.STOPPED)
    assert scope() == {"a"}
    assert hurry() == 1
    assert Replica.objects.get(model__name="a").attempt == 2
    assert Replica.objects.get(model__name="b").attempt == 1


def test_a_new_wish_is_served_by_a_hurried_tick() -> None:
    serving("a")
    model("b", replicas=2)
    assert hurry() == 4  # two created, two started
    assert Command.objects.filter(kind=CommandKind.START).count() == 3


def test_one_too_many_goes() -> None:
    admission = serving("a")
    model("a", replicas=2)
    hurry()
    make_ready(admission)
    model("a", replicas=1)
    assert hurry()
    assert Replica.objects.filter(wish=ReplicaWish.REMOVE).count() == 1


def test_what_fits_nowhere_says_why_at_once_and_its_words_are_kept_up_to_date_by_whole_ticks() -> None:
    serving("a", cards=1)
    model("b")
    hurry()
    replica = Replica.objects.get(model__name="b")
    assert replica.state == ReplicaState.PENDING
    assert "gpu-01" in replica.explanation["text"]
    Node.objects.update(schedulable=False, cordon_reason="fan")
    assert hurry() == 0
    tick()
    replica.refresh_from_db()
    assert "is cordoned (fan)" in replica.explanation["text"]


def test_a_replica_without_cards_and_one_that_displaces_others_are_placed() -> None:
    admission = serving("a", cards=1)
    model("cpu", engine="llamacpp", model="/m.gguf", gpus=0)
    Node.objects.update(engines={"vllm": "", "llamacpp": ""})
    hurry()
    assert Replica.objects.get(model__name="cpu").state == ReplicaState.STARTING
    make_ready(admission)
    model("big", priority=1, preempts=True)
    hurry()
    assert Command.objects.filter(kind=CommandKind.DRAIN).count() == 1


def test_neighbours_count_though_they_are_settled() -> None:
    serving("a")
    ready_node("gpu-02", cards=2)
    model("b", affinity=["a"])
    model("c", anti_affinity=["a"])
    assert scope() == {"a", "b", "c"}
    hurry()
    where = dict(Shard.objects.values_list("replica__model__name", "node__name"))
    assert where == {"a": "gpu-01", "b": "gpu-01", "c": "gpu-02"}


def test_a_settled_group_keeps_its_meeting_point() -> None:
    serving("a")
    Shard.objects.update(rendezvous_port=21000)
    model("b", pipeline_parallel=2, nodes=2)
    wishes = load_wishes(unsettled_only=True)
    assert wishes.meeting_points == {(Node.objects.get().pk, 21000)}


def _to(state: ShardState) -> Callable[[], Any]:
    return lambda: move_shard(Shard.objects.get().pk, state)


def _behind() -> None:
    revision = ProfileRevision.objects.create(model=CatalogModel.objects.get(), number=2, profile={})
    CatalogModel.objects.update(stable_revision=revision.number)


def _roll() -> None:
    Rollout.objects.create(model=CatalogModel.objects.get(), origin=1, target=1, state=RolloutState.ROLLING)


def _substitute() -> None:
    old = Replica.objects.get()
    Replica.objects.create(model=old.model, number=2, revision=old.revision, replaces=old)


def _rank_ended() -> None:
    shard = Shard.objects.get()
    Shard.objects.create(replica=shard.replica, node=shard.node, epoch=1, rank=1)
    move_shard(Shard.objects.get(rank=1).pk, ShardState.FAILED)


def _old_attempt() -> None:
    shard = Shard.objects.get()
    Replica.objects.update(attempt=2)
    Shard.objects.create(replica=shard.replica, node=shard.node, epoch=2, rank=1)


_CHANGES: dict[str, Callable[[], Any]] = {
    "one more": lambda: CatalogModel.objects.update(replicas=2),
    "one less": lambda: CatalogModel.objects.update(replicas=0),
    "no longer managed": lambda: CatalogModel.objects.update(profile=None, endpoints=[{"url": "http://10.0.0.5:8000"}]),
    "another revision": _behind,
    "a rollout": _roll,
    "a goal": lambda: Replica.objects.update(goal=1),
    "a restart": lambda: Replica.objects.update(restart_requested=True),
    "a stop": lambda: Replica.objects.update(wish=ReplicaWish.STOP),
    "a removal": lambda: Replica.objects.update(wish=ReplicaWish.REMOVE),
    "a substitute": _substitute,
    "not ready": lambda: move_replica(Replica.objects.get().pk, ReplicaState.LOST, attempt=1),
    "a shard that ended": _to(ShardState.STOPPED),
    "a shard that is lost": _to(ShardState.LOST),
    "a shard that ends": _to(ShardState.STOPPING),
    "a rank that ended": _rank_ended,
    "a shard of an old attempt": _old_attempt,
    "a shard that is to end": lambda: Shard.objects.update(wanted=False),
    "a shard that drains": lambda: Shard.objects.update(draining=True),
    "an engine that stalls": lambda: Shard.objects.update(stalled_at=timezone.now()),
    "no shard": lambda: Shard.objects.all().delete(),
    "a node that is drained": lambda: Node.objects.update(drain_deadline_at=timezone.now()),
    "a card that is drained": lambda: Gpu.objects.update(drain_deadline_at=timezone.now()),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_what_is_not_settled_is_found_by_the_database_as_by_the_rows(change: str) -> None:
    serving("a")
    _CHANGES[change]()
    assert unsettled(load_wishes()) == load_wishes(unsettled_only=True).scope == {CatalogModel.objects.get().pk}


def test_a_silent_node_unsettles_nothing() -> None:
    serving("a")
    move_node(Node.objects.get().pk, NodeStatus.UNREACHABLE, reason="silent")
    assert load_wishes(unsettled_only=True).scope == unsettled(load_wishes()) == set()
