"""Catalog models: edited as the catalog file's entry, checked by the same rules, saved by the same service."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import Count, Prefetch, Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget

from agent_client.profile import Entry
from agent_client.profile.hidden import shown_profile
from agent_client.protocol.states import ENDED_SHARD_STATES
from fleet.admin import commands
from fleet.admin.attempts import inside
from fleet.admin.base import MachineOwnedAdmin
from fleet.admin.confirm import ask
from fleet.admin.display import badge, link, plain, table, when
from fleet.admin.explanation import panel
from fleet.admin.page import LivePage, Page, sections
from fleet.admin.planning import plan
from fleet.admin.rollouts import ROLL_BACK, rollout_acts, told_of_roll_back, told_state, told_waits, undecided
from fleet.domain.states import NodeStatus, ReplicaState, RolloutState
from fleet.domain.words import counted
from fleet.fields import NamesField, YamlField
from fleet.models import CatalogModel, Event, ProfileRevision, Replica, Rollout, ServedName, Shard
from fleet.seen import SeenAdmin, SeenForm
from fleet.services import catalog, rollouts
from fleet.services.errors import FleetError


class CatalogModelForm(SeenForm):
    entry: Entry | None = None

    def name(self) -> str:
        return str(self.instance.name)

    def leaving(self) -> bool:
        return bool(self.instance.leaving)

    def changed_by(self) -> str:
        told = Event.objects.filter(kind="model_changed", text__startswith=f"{self.instance.name}: ")
        return told.values_list("actor", flat=True).first() or ""

    @property
    def wants_plan(self) -> bool:
        """Asked what would be, not told to save."""
        return "_plan" in self.data

    class Meta:
        model = CatalogModel
        fields = ["name", "aliases", "replicas", "profile", "endpoints", "routing"]
        field_classes = {"aliases": NamesField, "profile": YamlField, "endpoints": YamlField, "routing": YamlField}
        widgets = {
            "aliases": UnfoldAdminTextareaWidget(attrs={"rows": 2}),
            "profile": UnfoldAdminTextareaWidget(attrs={"rows": 12}),
            "endpoints": UnfoldAdminTextareaWidget(attrs={"rows": 3}),
            "routing": UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        }
        error_messages = {"name": {"unique": "cannot add it: there is a model of that name"}}
        help_texts = {
            "aliases": "other names that clients may ask for, with commas between them, such as default, qwen",
            "profile": "what to run: engine, model, gpu_class, tensor_parallel, …, as in a catalog file; YAML or JSON",
            "endpoints": 'instead of a profile: engines that llmgw does not run, such as [{"url": "http://10.1.2.7:8000"}]',
            "routing": "how the router serves it; a change restarts nothing. Such as "
            '{"concurrency": 64, "queue": 100, "queue_seconds": 30, "hold_seconds": 60, "sticky": "X-Session-Id", '
            '"affinity": true, "timers": {"connect": 2, "first_byte": 600, "between_bytes": 60, "total": 3600}}',
        }

    def clean(self) -> dict[str, Any]:
        given = super().clean()
        if self.errors:  # what could not be read is not there, and must not be missed
            return given
        name = given.get("name") or self.instance.name  # read-only once it exists
        given["aliases"] = given.get("aliases") or []
        data: dict[str, Any] = {"name": name, "aliases": given["aliases"], "routing": given.get("routing")}
        if given.get("profile") is not None:
            data |= {"profile": given["profile"], "replicas": given.get("replicas", 1)}
        if given.get("endpoints") is not None:
            data["endpoints"] = given["endpoints"]
        try:
            self.entry = catalog.read_entry(data)
        except FleetError as error:
            raise forms.ValidationError(f"{error.detail} {error.hint}".strip())
        taken = ServedName.objects.filter(name__in=self.entry.served_names).exclude(model__name=self.entry.name).first()
        if taken:
            raise forms.ValidationError(f"cannot save: the name {taken.name} belongs to {taken.model.name}.")
        if self.wants_plan:
            self.add_error(None, forms.ValidationError("Nothing is saved yet: see the plan.", code="plan"))
        return given


#: So many copies are listed on a model's page.
TOLD_COPIES = 50


@admin.register(CatalogModel)
class CatalogModelAdmin(SeenAdmin, LivePage):
    form = CatalogModelForm
    refusals = (FleetError,)
    add_when_gone = True
    change_form_template = "fleet/model.html"
    delete_in_head = False
    list_display = ["name", "truth", "shown_state", "engine", "revision", "changed"]
    list_filter = ["updated_at"]
    search_fields = ["name"]
    actions = ["pause", "resume", "roll_back"]
    fields = ["name", "aliases", "replicas", "profile", "endpoints", "routing"]

    def get_queryset(self, request: HttpRequest) -> Any:
        ready = Count("replica_set", filter=Q(replica_set__state=ReplicaState.READY))
        still = Prefetch("rollouts", Rollout.objects.filter(state__in=rollouts.OPEN), to_attr="open_rollouts")
        return super().get_queryset(request).annotate(ready=ready).prefetch_related("replica_set", still)

    @display(description="ready")
    def truth(self, model: Any) -> str:
        return f"{model.ready} of {model.replicas}" if model.profile is not None else "-"

    @admin.action(description="Pause the rollout", permissions=["change"])
    def pause(self, request: HttpRequest, rows: QuerySet[CatalogModel]) -> None:
        self._lead(request, rows, rollouts.pause, "its rollout is paused")

    @admin.action(description="Resume the rollout, or try a failed one again", permissions=["change"])
    def resume(self, request: HttpRequest, rows: QuerySet[CatalogModel]) -> None:
        self._lead(request, rows, rollouts.resume, "its rollout goes on")

    @admin.action(description="Roll back to the revision before", permissions=["change"])
    def roll_back(self, request: HttpRequest, rows: QuerySet[CatalogModel]) -> Any:
        given = ask(self, request, rows, **ROLL_BACK, tell=told_of_roll_back)
        return given if not isinstance(given, dict) else self._lead(request, rows, catalog.roll_back, "all go back")

    def _lead(self, request: HttpRequest, rows: QuerySet[CatalogModel], act: Any, done: str) -> None:
        actor = request.user.get_username()
        self.each(request, rows, lambda m: act(model=m, actor=actor), done)

    def page(self, row: CatalogModel, now: datetime) -> Page:
        if row.profile is None:
            return Page(sentence=f"{row.name} is served by {counted(len(row.endpoints or []), 'endpoint')} of its own.")
        alive = Shard.objects.exclude(state__in=ENDED_SHARD_STATES).select_related("node").order_by("epoch", "rank")
        related = Prefetch("shards", queryset=alive, to_attr="alive")
        rows = Replica.objects.filter(model=row).select_related("revision").prefetch_related(related)
        copies = list(rows.order_by("number"))
        for copy in copies:
            copy.model = row
        pending = (copy for copy in copies if copy.state == ReplicaState.PENDING and copy.explanation)
        unplaced = next(pending, None)
        rollout = row.rollouts.order_by("-pk").first()
        return Page(
            sentence=_sentence(row, copies),
            following=_following(rollout, now),
            acts=rollout_acts(rollout),
            sections=sections(
                ("Why there is no place", panel(unplaced.explanation) if unplaced else ""),
                ("Copies", _copies(copies, now)),
                ("One more copy now", "" if unplaced else plan(row.name)),
                ("Command", commands.of_model(row)),
            ),
        )

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        form = context["adminform"].form
        if isinstance(form, CatalogModelForm) and form.wants_plan and form.entry and form.entry.profile:
            context["plan"] = plan(form.entry.name, form.cleaned_data["profile"])
            context["errors"] = None  # the one that there is says that nothing is saved: nothing is to be corrected
        return super().render_change_form(request, context, *args, **kwargs)

    def told_before_delete(self, row: CatalogModel) -> list[str]:
        running = Replica.objects.filter(model=row).exclude(attempt=0)
        shards = list(Shard.objects.filter(replica__in=running).exclude(state__in=ENDED_SHARD_STATES))
        requests = inside(shards)
        busy = f", with {counted(requests, 'request')} in them now" if requests else ""
        names = ", ".join([row.name, *row.aliases])
        return [
            f"{counted(running.count(), 'replica')} of it {'is' if running.count() == 1 else 'are'} drained and "
            f"stopped{busy}; the entry goes with the last of them.",
            f"From now on requests for {names} are answered with 404.",
            "To undo it, add the model again: its weights stay on the nodes.",
        ]

    @display(description="engine")
    def engine(self, model: CatalogModel) -> str:
        return str(model.profile.get("engine", "")) if model.profile is not None else "endpoints"

    @display(description="state")
    def shown_state(self, model: Any) -> SafeString | str:
        """In what states its copies are, the worst first; nothing while all are ready."""
        order = (ReplicaState.FAILED, ReplicaState.LOST, ReplicaState.PENDING, ReplicaState.DEGRADED)
        states = [ReplicaState(replica.state) for replica in model.replica_set.all()]
        shown = sorted(set(states) - {ReplicaState.READY}, key=lambda state: (state not in order, state))
        told = [(badge(state), "" if len(states) == 1 else f" {states.count(state)}") for state in shown]
        told += [(link(rollout, f"rollout {rollout.state}"), "") for rollout in model.open_rollouts]
        return format_html_join(", ", "{}{}", told)

    @display(description="changed", ordering="updated_at")
    def changed(self, model: Any) -> SafeString | str:
        return when(model.updated_at, model.database_now)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ["name"] if obj else []

    def save_model(self, request: HttpRequest, obj: CatalogModel, form: Any, change: bool) -> None:
        catalog.save_entry(form.entry, actor=request.user.get_username())
        obj.pk = CatalogModel.objects.values_list("pk", flat=True).get(name=form.entry.name)

    def delete_row(self, row: CatalogModel, actor: str) -> None:
        catalog.delete_model(row.name, actor=actor)


def _sentence(model: CatalogModel, copies: Sequence[Replica]) -> str:
    ready = sum(copy.state == ReplicaState.READY for copy in copies)
    leaving = " It is being deleted." if model.leaving else ""
    told = f"{model.name}: {ready} of {counted(model.replicas, 'copy')} ready, at revision {model.stable_revision}"
    return (
        told + (f"; revision {model.revision} is wished." if model.revision != model.stable_revision else ".") + leaving
    )


def _following(rollout: Rollout | None, now: datetime) -> SafeString | str:
    if rollout is None or rollout.state in (RolloutState.DONE, RolloutState.DROPPED):
        return ""
    if rollout.state == RolloutState.FAILED and not undecided(rollout):
        return ""  # something else is wished since
    page = link(rollout, f"The rollout to revision {rollout.target}")
    why = f": {rollout.reason}" if rollout.reason else ""
    return format_html("{} {}{}. {}", page, told_state(rollout, now), why, told_waits(rollout))


def _copies(copies: Sequence[Replica], now: datetime) -> SafeString | str:
    rows = []
    for copy in copies[:TOLD_COPIES]:
        state = badge(ReplicaState(copy.state))
        since = when(copy.state_at, now)
        on = format_html_join(", ", "{}", ((node,) for node in _nodes(copy)))
        rows.append((link(copy, copy.label), state, since, on, copy.revision.number, copy.endpoint, copy.reason))
    shown = table(("copy", "state", "since", "on", "revision", "endpoint", "reason"), rows)
    more = len(copies) - TOLD_COPIES
    return format_html("{}<p>and {} more</p>", shown, more) if more > 0 else shown


def _nodes(copy: Any) -> list[SafeString]:
    """Where it runs, the head first; of a node that is not ready also what it is."""
    nodes = {shard.node_id: shard.node for shard in copy.alive}.values()
    return [
        link(node, node.name if node.status == NodeStatus.READY else f"{node.name} ({node.status})") for node in nodes
    ]


@admin.register(ProfileRevision)
class ProfileRevisionAdmin(MachineOwnedAdmin):
    list_display = ["model", "number", "created_at"]
    list_filter = ["model"]
    list_select_related = ["model"]
    search_fields = ["model__name"]
    exclude = ["profile"]
    readonly_fields = ["shown_profile"]

    @display(description="profile")
    def shown_profile(self, revision: ProfileRevision) -> SafeString:
        return plain(shown_profile(revision.profile))


@admin.register(ServedName)
class ServedNameAdmin(MachineOwnedAdmin):
    list_display = ["name", "model"]
    list_select_related = ["model"]
    search_fields = ["name"]
