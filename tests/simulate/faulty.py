"""Mistakes that somebody could make in the code under simulation, each as a patch; the judge must find every one.

What a second guard makes up for is not here, since no schedule saw it break a promise: a ledger that is not loaded
(engines carry marks), a stop for whatever epoch and reports taken for the newest attempt's (a session drops frames that
come late or twice), frames of an older session believed (reports are whole and come again).
"""

import dataclasses
from typing import Any

import pytest

from agent_client import supervisor
from agent_client.supervisor import Supervisor, engine
from fleet import snapshots
from fleet.domain import reconcile
from fleet.models import Shard
from fleet.services import claims, commands, liveness, nodes, reports, returns, starting


def cards_are_free_before_they_are_empty(patch: pytest.MonkeyPatch) -> None:
    """An order to stop frees the cards in the books."""
    order = commands.order

    def too_early(*, shard: Shard, kind: Any, reason: str) -> Any:
        if kind == "stop":
            claims.release(shard.pk)
        return order(shard=shard, kind=kind, reason=reason)

    patch.setattr(commands, "order", too_early)


def an_engine_is_gone_before_it_is(patch: pytest.MonkeyPatch) -> None:
    """The agent says that nothing is left of an engine that it has only signalled."""
    patch.setattr(engine.Engine, "_left", lambda engine, held: "")


def nothing_is_adopted(patch: pytest.MonkeyPatch) -> None:
    """A restarted agent knows nothing of its engines, and looks for none."""

    async def nothing(supervisor: Supervisor) -> None:
        supervisor._ground.ledger.entries.clear()

    patch.setattr(Supervisor, "adopt", nothing)


def healthy_engines_are_restarted_with_the_agent(patch: pytest.MonkeyPatch) -> None:
    look = supervisor.look

    def all_dead(ground: Any) -> Any:
        left = look(ground)
        return dataclasses.replace(left, known=tuple((held, False) for held, _ in left.known))

    patch.setattr(supervisor, "look", all_dead)


def a_stop_is_answered_and_forgotten(patch: pytest.MonkeyPatch) -> None:
    async def forgotten(*_: Any, **__: Any) -> None:
        pass

    patch.setattr(Supervisor, "stop", forgotten)


def silence_is_loss_at_once(patch: pytest.MonkeyPatch) -> None:
    judge = liveness.judge

    def hasty(nodes: Any, *, limits: Any, **more: Any) -> Any:
        return judge(nodes, limits=dataclasses.replace(limits, lost_after=0.0), **more)

    patch.setattr(liveness, "judge", hasty)


def no_outage_is_held(patch: pytest.MonkeyPatch) -> None:
    judge = liveness.judge

    def unheld(nodes: Any, *, limits: Any, **more: Any) -> Any:
        return judge(nodes, limits=dataclasses.replace(limits, brake_nodes=99), **more)

    patch.setattr(liveness, "judge", unheld)


def one_replica_is_overlooked(patch: pytest.MonkeyPatch) -> None:
    one = reconcile._Tick._one

    def all_but_the_second(tick: Any, replica: Any) -> Any:
        return () if replica.number == 2 else one(tick, replica)

    patch.setattr(reconcile._Tick, "_one", all_but_the_second)


def ranks_outlive_each_other(patch: pytest.MonkeyPatch) -> None:
    stop = reconcile.stop

    def partly(shards: Any, reason: str, **more: Any) -> Any:
        return [] if reason == "another rank ended" else stop(shards, reason, **more)

    patch.setattr(reconcile, "stop", partly)


def a_lost_attempt_comes_back_beside_the_next(patch: pytest.MonkeyPatch) -> None:
    """What came instead is not looked at: the database itself refuses it."""
    patch.setattr(reports, "_take_back", claims.reclaim)


def a_replaced_engine_holds_no_cards(patch: pytest.MonkeyPatch) -> None:
    """An engine that comes back with its node, and is not wanted any more, uses cards that the books call free."""
    patch.setattr(claims, "hold_back", lambda shard: None)


def drains_never_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile._Tick, "_evacuate", lambda tick, replica: ())


def cordons_are_overlooked(patch: pytest.MonkeyPatch) -> None:
    nodes = snapshots._nodes

    def all_open(*given: Any) -> Any:
        return tuple(dataclasses.replace(node, schedulable=True) for node in nodes(*given))

    patch.setattr(snapshots, "_nodes", all_open)
    patch.setattr(starting, "_where_it_may", list)


def claims_outlive_their_shards(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claims, "release", lambda shard: 0)


def nobody_is_welcomed_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(returns, "welcome", lambda node, **_: None)


def every_boot_is_believed(patch: pytest.MonkeyPatch) -> None:
    """A copy of a machine is taken for its reboot while the machine lives."""
    patch.setattr(nodes, "_meet_another_boot", lambda *_: None)
