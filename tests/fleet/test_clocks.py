"""Processes' clocks differ, the database's is put back: nobody is lost for that, and who is gone is lost in time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import permutations
from unittest.mock import patch

import pytest
from django.apps import apps
from django.db.models import DateTimeField, F
from django.db.models.functions import Now
from django.utils import timezone

from fleet import clock
from fleet.conf import fleet_conf
from fleet.domain.drain import SLACK as DRAIN_SLACK
from fleet.domain.states import NodeStatus
from fleet.models import Event, Gpu, Listener, Node, Replica, Shard
from fleet.services import heartbeats, liveness, operations, returns
from fleet.services.nodes import Admission
from fleet.tasks import judge_nodes
from tests.fleet.test_guards import fleet
from tests.fleet.test_reconciler import make_ready, model, ready_node, tick

pytestmark = pytest.mark.django_db

AHEAD, BEHIND, RIGHT = timedelta(minutes=10), timedelta(minutes=-10), timedelta()
HOUR = timedelta(hours=1)
PAIRS = list(permutations([AHEAD, BEHIND, RIGHT], 2))


@contextmanager
def clock_off(by: timedelta) -> Iterator[None]:
    """A process whose own clock differs from the database's."""
    real: Callable[[], datetime] = timezone.now
    with patch("django.utils.timezone.now", lambda: real() + by):
        yield


def judge(process: timedelta, rounds: int = 3) -> None:
    with clock_off(process):
        for _ in range(rounds):
            judge_nodes()


def silence(*names: str) -> None:
    Node.objects.filter(name__in=names).update(last_seen_at=Now() - timedelta(minutes=8))


def _move(by: timedelta) -> None:
    """Every stamp in the database."""
    for kind in apps.get_app_config("fleet").get_models():
        for field in kind._meta.concrete_fields:
            if isinstance(field, DateTimeField):
                kind._base_manager.update(**{field.name: F(field.name) + by})


def put_back(by: timedelta) -> None:
    """The database's clock: what it has stamped lies so much further ahead of it."""
    _move(by)


def passes(seconds: float, *, dead: str) -> None:
    """Time, in which the listener and all nodes but one are heard again and again."""
    _move(-timedelta(seconds=seconds))
    Listener.objects.update(seen_at=Now())
    Node.objects.exclude(name=dead).update(last_seen_at=Now())


def lost() -> set[str]:
    return set(Node.objects.filter(status=NodeStatus.LOST).values_list("name", flat=True))


@pytest.mark.parametrize("process", [AHEAD, BEHIND])
def test_a_worker_with_a_wrong_clock_loses_nobody_who_is_heard(process: timedelta) -> None:
    fleet(20)
    judge(process)
    assert Node.objects.filter(status=NodeStatus.READY).count() == 20


@pytest.mark.parametrize(("first", "then"), PAIRS)
def test_losses_keep_their_spacing_whichever_worker_declares_them(first: timedelta, then: timedelta) -> None:
    fleet(20)
    silence("n00", "n01")
    judge(first)
    judge(then)
    assert len(lost()) == 1
    _move(-fleet_conf().loss_spacing)
    Listener.objects.update(seen_at=Now())
    judge(then, rounds=1)
    assert len(lost()) == 2


@pytest.mark.parametrize(("first", "then"), PAIRS)
def test_after_a_hold_those_who_come_back_late_have_all_their_time(first: timedelta, then: timedelta) -> None:
    fleet(20)
    silence(*(f"n{i:02}" for i in range(10)))
    judge(first)
    assert liveness.eviction_held()
    for node in Node.objects.exclude(name="n00"):
        returns.welcome(node.pk)
    Node.objects.exclude(name="n00").update(last_seen_at=Now())
    judge(first, rounds=1)
    assert not liveness.eviction_held()
    judge(then)
    assert not lost()
    passes(fleet_conf().lost_after.total_seconds() + 1, dead="n00")
    judge(then)
    assert lost() == {"n00"}


@pytest.mark.parametrize("process", [AHEAD, BEHIND])
def test_what_is_recorded_bears_the_databases_time(process: timedelta) -> None:
    before = clock.now()
    fleet(20)
    silence("n00")
    judge(process)
    for at in (Node.objects.get(name="n00").status_at, *Event.objects.values_list("at", flat=True)):
        assert before <= at <= clock.now()


def test_a_database_clock_that_was_put_back_delays_a_loss_by_no_more_than_a_grace() -> None:
    """Also right after another loss and after a hold, whose stamps lie an hour ahead then."""
    fleet(20)
    liveness.record("eviction_held", "held")
    liveness.record("eviction_released", "no longer")
    liveness.record("node_lost", "another")
    put_back(HOUR)
    judge(RIGHT)
    assert not lost()  # before the listener has written once more nothing is known of it
    heartbeats.flush(listener="web-1", first=False, beats={})
    Node.objects.exclude(name="n00").update(last_seen_at=Now())
    judge(RIGHT)
    assert Node.objects.filter(status=NodeStatus.READY).count() == 20
    conf = fleet_conf()
    passes((conf.lost_after + conf.start_grace).total_seconds() + 1, dead="n00")
    judge(RIGHT)
    assert lost() == {"n00"}


def test_a_listener_that_ended_before_the_clock_was_put_back_listens_no_more() -> None:
    fleet(20)
    silence("n00")
    put_back(timedelta(minutes=5))
    judge(RIGHT)
    assert Node.objects.filter(status=NodeStatus.READY).count() == 20


def test_a_database_clock_that_was_put_forward_loses_nobody() -> None:
    fleet(20)
    put_back(-HOUR)
    heartbeats.flush(listener="web-1", first=False, beats={})
    judge(RIGHT)
    assert Node.objects.filter(status=NodeStatus.READY).count() == 20


def _drain_node() -> None:
    operations.drain_node(node=Node.objects.get(), deadline_seconds=600, reason="", actor="t", now=clock.now())


def _drain_card() -> None:
    card = Gpu.objects.get(claims__released_at__isnull=True, claims__isnull=False)
    operations.drain_gpu(gpu=card, deadline_seconds=600, reason="", actor="t", now=clock.now())


def _drain_replica() -> None:
    operations.drain_replica(replica=Replica.objects.get(), deadline_seconds=600, actor="t", now=clock.now())


def _restart_replica() -> None:
    operations.restart_replica(replica=Replica.objects.get(), drain_seconds=600, actor="t", now=clock.now())


@pytest.mark.parametrize("drain", [_drain_node, _drain_card, _drain_replica, _restart_replica])
def test_a_drain_that_was_set_before_the_clock_was_put_back_lasts_no_longer_than_it_was_given(
    drain: Callable[[], None],
) -> None:
    shard = make_ready(_serving())
    drain()
    tick()  # the shard has a deadline of its own now where it drains
    put_back(HOUR)
    tick()
    deadlines = [at for at in _deadlines() if at is not None]
    assert deadlines
    assert max(deadlines) <= clock.now() + timedelta(seconds=600)
    assert Shard.objects.get(pk=shard.pk).wanted
    _move(-timedelta(seconds=601) - DRAIN_SLACK)
    tick()
    assert not Shard.objects.get(pk=shard.pk).wanted


def test_a_drains_deadline_stands_while_the_clock_goes_on() -> None:
    make_ready(_serving())
    _drain_node()
    before = _deadlines()
    tick()
    tick()
    assert _deadlines() == before


def _serving() -> Admission:
    admission = ready_node(cards=1)
    model()
    tick()
    return admission


def _deadlines() -> list[datetime | None]:
    kinds = (Node, Gpu, Replica, Shard)
    return [at for kind in kinds for at in kind._base_manager.values_list("drain_deadline_at", flat=True)]
