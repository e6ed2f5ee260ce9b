"""Replicas, shards and claims. A replica's page: one sentence, why, where, failures, events."""

import json
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import display

from fleet.admin import commands
from fleet.admin.base import MachineOwnedAdmin
from fleet.admin.confirm import DrainForm, ask
from fleet.admin.display import LABELS, table
from fleet.admin.explanation import panel
from fleet.domain.states import ReplicaWish
from fleet.models import Event, GpuClaim, Replica, Shard
from fleet.services import operations
from fleet.services.commands import DEFAULT_DRAIN_SECONDS


@admin.register(Replica)
class ReplicaAdmin(MachineOwnedAdmin):
    list_display = ["label", "shown_state", "short_reason", "wish", "since"]
    list_filter = ["state", "wish", "model"]
    list_select_related = ["model"]
    search_fields = ["model__name", "reason"]
    actions = ["drain", "stop", "start", "restart"]
    fieldsets = [
        (None, {"fields": ["sentence", "why", "where"]}),
        ("Failures", {"fields": ["failures"]}),
        ("Command", {"fields": ["command"]}),
        ("Events", {"fields": ["events"]}),
        ("Facts", {"fields": ["model", "number", "revision", "wish", "state", "attempt", "endpoint", "crash_count"]}),
    ]
    readonly_fields = ["sentence", "why", "where", "failures", "command", "events"]

    @display(description="state", ordering="state", label=LABELS)
    def shown_state(self, replica: Replica) -> str:
        return replica.state

    @display(description="since", ordering="state_at")
    def since(self, replica: Replica) -> str:
        return f"{replica.state_at:%Y-%m-%d %H:%M}"

    @display(description="reason")
    def short_reason(self, replica: Replica) -> str:
        return replica.reason[:160]

    @display(description="Now")
    def sentence(self, replica: Replica) -> str:
        since = f"since {replica.state_at:%Y-%m-%d %H:%M:%S} UTC"
        following = f" Next try at {replica.next_try_at:%H:%M:%S} UTC." if replica.next_try_at else ""
        reason = f": {replica.reason}" if replica.reason else ""
        return f"{replica.label} is {replica.state} {since}{reason}.{following}"

    @display(description="Why")
    def why(self, replica: Replica) -> SafeString | str:
        return panel(replica.explanation)

    @display(description="Where")
    def where(self, replica: Replica) -> SafeString | str:
        rows = []
        for shard in _shards(replica)[:8]:
            cards = ", ".join(f"GPU {claim.gpu.index}" for claim in shard.claims.all()) or "CPU"
            pids = ", ".join(map(str, shard.pids)) or "-"
            far = "" if shard.progress is None else f" {shard.progress:.0%}"
            state = f"{shard.state}: {shard.phase}{far}" if shard.phase else shard.state
            rows.append((shard.epoch, shard.rank, shard.node.name, cards, pids, state, shard.reason))
        return table(("attempt", "rank", "node", "cards", "pid", "state", "reason"), rows)

    @display(description="First and latest failure")
    def failures(self, replica: Replica) -> SafeString | str:
        found = [f for f in (replica.first_failure, replica.latest_failure) if f]
        if not found:
            return "-"
        return format_html_join("", "<pre>{}</pre>", ((json.dumps(failure, indent=1),) for failure in found))

    @display(description="Command")
    def command(self, replica: Replica) -> SafeString | str:
        return commands.of_replica(replica, _shards(replica).filter(epoch=replica.attempt))

    @display(description="Events")
    def events(self, replica: Replica) -> SafeString | str:
        rows = Event.objects.filter(replica=replica)[:30]
        return format_html_join("", "<p>{} {}</p>", ((f"{e.at:%Y-%m-%d %H:%M:%S}", e.text) for e in rows)) or "-"

    @admin.action(description="Drain: stop with the last request")
    def drain(self, request: HttpRequest, rows: QuerySet[Replica]) -> Any:
        given = ask(
            self,
            request,
            rows.select_related("model"),
            title="Drain replicas",
            explain="Nothing new comes in; each stops with its last request, and at the deadline at last.",
            form=DrainForm,
            initial={"deadline_seconds": DEFAULT_DRAIN_SECONDS},
        )
        if not isinstance(given, dict):
            return given
        actor, now, seconds = request.user.get_username(), timezone.now(), given["deadline_seconds"]
        act: Any = lambda r: operations.drain_replica(replica=r, deadline_seconds=seconds, actor=actor, now=now)  # noqa: E731
        return self.each(request, rows, act, "is to be drained and stopped")

    @admin.action(description="Stop now")
    def stop(self, request: HttpRequest, rows: QuerySet[Replica]) -> Any:
        explain = "They are stopped at once: answers that are under way are cut."
        given = ask(self, request, rows.select_related("model"), title="Stop replicas", explain=explain)
        return given if not isinstance(given, dict) else self._wish(request, rows, ReplicaWish.STOP, "is to be stopped")

    @admin.action(description="Start")
    def start(self, request: HttpRequest, rows: QuerySet[Replica]) -> None:
        self._wish(request, rows, ReplicaWish.RUN, "is to run")

    @admin.action(description="Restart")
    def restart(self, request: HttpRequest, rows: QuerySet[Replica]) -> None:
        actor = request.user.get_username()
        act = lambda r: operations.restart_replica(replica=r, actor=actor, now=timezone.now())  # noqa: E731
        self.each(request, rows, act, "is to be restarted")

    def _wish(self, request: HttpRequest, rows: QuerySet[Replica], wish: ReplicaWish, done: str) -> None:
        actor = request.user.get_username()
        act: Any = lambda r: operations.set_wish(replica=r, wish=wish, actor=actor, now=timezone.now())  # noqa: E731
        self.each(request, rows, act, done)


def _shards(replica: Replica) -> QuerySet[Shard]:
    return replica.shards.select_related("node").prefetch_related("claims__gpu").order_by("-epoch", "rank")


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
