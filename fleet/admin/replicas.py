"""Replicas, shards and claims. A replica's page: one sentence, why, failures, attempts, command, events."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.decorators import display

from agent_client.protocol.states import ENDED_SHARD_STATES
from fleet import clock
from fleet.admin import commands
from fleet.admin.attempts import attempts, cards, inside, of_replica
from fleet.admin.base import MachineOwnedAdmin
from fleet.admin.confirm import TimeForm, ask
from fleet.admin.display import LABELS, facts, lasting, story, when
from fleet.admin.explanation import panel
from fleet.admin.failures import both
from fleet.admin.page import Act, LivePage, Page, acts, sections
from fleet.domain.states import ReplicaState, ReplicaWish
from fleet.domain.words import counted
from fleet.models import Event, GpuClaim, Replica, Shard
from fleet.services import operations
from fleet.services.commands import DEFAULT_DRAIN_SECONDS

STAYS_STOPPED = "They stay stopped until «Start» is chosen. Nothing takes their place."


@admin.register(Replica)
class ReplicaAdmin(LivePage, MachineOwnedAdmin):
    list_display = ["label", "shown_state", "short_reason", "shown_wish", "since"]
    list_filter = ["state", "wish", "model"]
    list_select_related = ["model"]
    search_fields = ["model__name", "reason"]
    actions = ["drain", "stop", "start", "restart", "retry"]

    @display(description="replica", ordering="model__name")
    def label(self, replica: Replica) -> str:
        return replica.label

    @display(description="state", ordering="state", label=LABELS)
    def shown_state(self, replica: Replica) -> str:
        return replica.state

    @display(description="since", ordering="state_at")
    def since(self, replica: Any) -> SafeString | str:
        return when(replica.state_at, replica.database_now)

    @display(description="wished", ordering="wish")
    def shown_wish(self, replica: Replica) -> str:
        return replica.get_wish_display()

    @display(description="reason")
    def short_reason(self, replica: Replica) -> str:
        return shortened(replica.reason)

    def page(self, row: Replica, now: datetime) -> Page:
        pending = row.state == ReplicaState.PENDING
        return Page(
            sentence=_sentence(row, now),
            following=_following(row, now),
            acts=_acts(row),
            sections=sections(
                ("Why it has no place", panel(row.explanation) if pending else ""),
                ("What stands against it" if _in_trouble(row) else "The latest failure", both(row, now)),
                ("Attempts", attempts(row, now)),
                ("Served", _served(row)),
                ("Command", commands.of_replica(row, of_replica(row).filter(epoch=row.attempt))),
                ("Events", story(Event.objects.filter(replica=row)[:30], now)),
            ),
        )

    @admin.action(description="Drain: stop with the last request", permissions=["change"])
    def drain(self, request: HttpRequest, rows: QuerySet[Replica]) -> Any:
        return self._in_time(
            request,
            rows,
            lambda r, seconds, **who: operations.drain_replica(replica=r, deadline_seconds=seconds, **who),
            "is to be drained and stopped",
            title="Drain and stop",
            explain="Nothing new comes in; each stops with its last request, and at the deadline at last.",
            undo=STAYS_STOPPED,
        )

    @admin.action(description="Stop now", permissions=["change"])
    def stop(self, request: HttpRequest, rows: QuerySet[Replica]) -> Any:
        given = ask(
            self,
            request,
            rows.select_related("model"),
            title="Stop now",
            explain="They are stopped at once: answers that are under way are cut.",
            undo=STAYS_STOPPED,
            tell=_tell(rows),
        )
        return given if not isinstance(given, dict) else self._wish(request, rows, ReplicaWish.STOP, "is to be stopped")

    @admin.action(description="Start", permissions=["change"])
    def start(self, request: HttpRequest, rows: QuerySet[Replica]) -> None:
        self._wish(request, rows, ReplicaWish.RUN, "is to run")

    @admin.action(description="Restart", permissions=["change"])
    def restart(self, request: HttpRequest, rows: QuerySet[Replica]) -> Any:
        return self._in_time(
            request,
            rows,
            lambda r, seconds, **who: operations.restart_replica(replica=r, drain_seconds=seconds, **who),
            "is to be restarted",
            title="Restart",
            explain="Each stops and starts again as its next attempt, on the same cards or others. "
            "A wait after crashes is cut short.",
            undo="A restart that has begun can't be taken back.",
        )

    @admin.action(description="Try again now", permissions=["change"])
    def retry(self, request: HttpRequest, rows: QuerySet[Replica]) -> None:
        actor, now = request.user.get_username(), clock.now()
        self.each(
            request, rows, lambda r: operations.restart_replica(replica=r, actor=actor, now=now), "is tried again"
        )

    def _in_time(
        self, request: HttpRequest, rows: QuerySet[Replica], act: Callable[..., Any], done: str, **words: str
    ) -> Any:
        """Ask how long requests may take to end, then act on each row: `act(row, seconds, actor=, now=)`."""
        given = ask(
            self,
            request,
            rows.select_related("model"),
            tell=_tell(rows),
            form=TimeForm,
            initial={"deadline_seconds": f"{DEFAULT_DRAIN_SECONDS:g}"},
            **words,
        )
        if not isinstance(given, dict):
            return given
        seconds, who = given["deadline_seconds"], {"actor": request.user.get_username(), "now": clock.now()}
        return self.each(request, rows, lambda r: act(r, seconds, **who), done)

    def _wish(self, request: HttpRequest, rows: QuerySet[Replica], wish: ReplicaWish, done: str) -> None:
        actor = request.user.get_username()
        act: Any = lambda r: operations.set_wish(replica=r, wish=wish, actor=actor, now=clock.now())  # noqa: E731
        self.each(request, rows, act, done)


def shortened(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _in_trouble(replica: Replica) -> bool:
    return replica.state not in (ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.STOPPED)


def _sentence(replica: Replica, now: datetime) -> SafeString:
    state = replica.state
    if state == ReplicaState.FAILED:
        times = counted(replica.crash_count, "time")
        return format_html("{} has failed {} in a row, last {}.", replica.label, times, when(replica.state_at, now))
    return format_html("{} has been {} for {}.", replica.label, state, lasting(replica.state_at, now))


def _following(replica: Replica, now: datetime) -> SafeString | str:
    """Why, and what happens next by itself."""
    if replica.wish == ReplicaWish.STOP and replica.state == ReplicaState.STOPPED:
        return "It was stopped by a person and stays so until it is started."
    if replica.next_try_at and replica.state == ReplicaState.FAILED:
        if replica.next_try_at <= now:
            return "The next try is due now."
        return format_html("The next try comes by itself {}.", when(replica.next_try_at, now))
    if replica.state == ReplicaState.PENDING:
        return "It starts by itself as soon as it fits."
    if replica.drain_deadline_at and replica.state == ReplicaState.DRAINING:
        return format_html("What still runs is stopped {}.", when(replica.drain_deadline_at, now))
    return replica.reason


def _acts(replica: Replica) -> tuple[Act, ...]:
    if replica.wish == ReplicaWish.REMOVE:
        return ()
    if replica.wish == ReplicaWish.STOP:
        return (Act(action="start", label="Start", kind="first"),)
    runs = replica.state in (ReplicaState.READY, ReplicaState.DRAINING)
    waits = replica.state == ReplicaState.FAILED
    return acts(
        Act(action="retry", label="Try again now", kind="first") if waits else None,
        Act(action="restart", label="Restart …") if not waits and replica.attempt else None,
        Act(action="drain", label="Drain …") if runs else None,
        Act(action="stop", label="Stop …"),
    )


def _served(replica: Replica) -> SafeString | str:
    if not replica.endpoint:
        return "-"
    flow = getattr(replica, "flow", None)
    requests = flow.in_flight if flow and flow.attempt == replica.attempt else None
    head = next((s for s in of_replica(replica) if s.epoch == replica.attempt and s.rank == 0), None)
    rows = [
        ("endpoint", replica.endpoint),
        ("revision", replica.revision.number),
        ("requests from routers", requests),
        ("requests in the engine", inside([head]) if head else None),
        ("processes", ", ".join(map(str, head.pids)) if head else None),
    ]
    return facts(rows)


def _tell(rows: QuerySet[Replica]) -> Callable[[Replica], str]:
    """Of one replica: where it runs, what is in it, and how many copies of its model are left meanwhile."""
    chosen = set(rows.values_list("pk", flat=True))

    def tell(replica: Replica) -> str:
        return "; ".join(_consequences(replica, chosen))

    return tell


def _consequences(replica: Replica, chosen: set[int]) -> Iterator[str]:
    live = [shard for shard in of_replica(replica) if shard.state not in ENDED_SHARD_STATES]
    where = ", ".join(f"{shard.node.name} GPU {cards(shard)}".replace("GPU CPU", "CPU") for shard in live)
    yield f"{replica.state} on {where}" if where else replica.state
    requests = inside(live)
    if requests:
        yield f"{counted(requests, 'request')} in it now"
    copies = Replica.objects.filter(model=replica.model, state=ReplicaState.READY).exclude(pk__in=chosen).count()
    wanted = replica.model.replicas
    if copies:
        yield f"{copies} of {wanted} copies of {replica.model.name} stay ready"
    else:
        yield f"no copy of {replica.model.name} is left ready: its requests are refused until one is"


@admin.register(Shard)
class ShardAdmin(MachineOwnedAdmin):
    list_display = ["replica", "rank", "epoch", "node", "shown_state", "wanted", "endpoint", "reason"]
    list_filter = ["state", "wanted"]
    list_select_related = ["replica__model", "node"]
    search_fields = ["replica__model__name", "node__name"]

    @display(description="state", ordering="state", label=LABELS)
    def shown_state(self, shard: Shard) -> str:
        return shard.state


@admin.register(GpuClaim)
class GpuClaimAdmin(MachineOwnedAdmin):
    list_display = ["gpu", "shard", "claimed_at", "released_at"]
    list_filter = ["released_at"]
    list_select_related = ["gpu__node", "shard"]
    search_fields = ["gpu__uuid"]
