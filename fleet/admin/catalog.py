"""Catalog models: edited as the catalog file's entry, checked by the same rules, saved by the same service."""

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget

from agent_client.profile import Entry
from fleet.admin import commands
from fleet.admin.base import MachineOwnedAdmin, ServiceDeleteAdmin
from fleet.admin.display import LABELS, table
from fleet.admin.explanation import panel
from fleet.domain.states import ReplicaState
from fleet.models import CatalogModel, DryCheck, ProfileRevision, Replica, Rollout, ServedName
from fleet.services import catalog, rollouts
from fleet.services.errors import FleetError


class CatalogModelForm(forms.ModelForm):
    entry: Entry | None = None

    class Meta:
        model = CatalogModel
        fields = ["name", "aliases", "replicas", "profile", "endpoints"]
        widgets = {
            "aliases": UnfoldAdminTextareaWidget(attrs={"rows": 2}),
            "profile": UnfoldAdminTextareaWidget(attrs={"rows": 12}),
            "endpoints": UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        }
        help_texts = {
            "aliases": 'other names that clients may ask for, such as ["default"]',
            "profile": "what to run: engine, model, gpu_class, tensor_parallel, …; the same words as in a catalog file",
            "endpoints": 'instead of a profile: engines that llmgw does not run, such as [{"url": "http://10.1.2.7:8000"}]',
        }

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        name = given.get("name") or self.instance.name  # read-only once it exists
        data: dict[str, Any] = {"name": name, "aliases": given.get("aliases") or []}
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
        return given


#: So many copies are listed on a model's page.
TOLD_COPIES = 50


def _link(replica: Replica) -> SafeString:
    return format_html('<a href="{}">{}</a>', reverse("admin:fleet_replica_change", args=[replica.pk]), replica.label)


@admin.register(CatalogModel)
class CatalogModelAdmin(ServiceDeleteAdmin):
    form = CatalogModelForm
    list_display = ["name", "truth", "engine", "revision", "updated_at"]
    list_filter = ["updated_at"]
    search_fields = ["name"]
    actions = ["pause", "resume", "roll_back"]
    fields = ["copies", "name", "aliases", "replicas", "profile", "endpoints", "revision", "command"]

    def get_queryset(self, request: HttpRequest) -> Any:
        ready = Count("replica_set", filter=Q(replica_set__state=ReplicaState.READY))
        return super().get_queryset(request).annotate(ready=ready)

    @display(description="ready")
    def truth(self, model: Any) -> str:
        return f"{model.ready} of {model.replicas}" if model.profile is not None else "-"

    @admin.action(description="Pause the rollout")
    def pause(self, request: HttpRequest, rows: QuerySet[CatalogModel]) -> None:
        actor = request.user.get_username()
        self.each(request, rows, lambda m: rollouts.pause(model=m, actor=actor), "its rollout is paused")

    @admin.action(description="Resume the rollout, or try a failed one again")
    def resume(self, request: HttpRequest, rows: QuerySet[CatalogModel]) -> None:
        actor = request.user.get_username()
        self.each(request, rows, lambda m: rollouts.resume(model=m, actor=actor), "its rollout goes on")

    @admin.action(description="Roll back to the revision before")
    def roll_back(self, request: HttpRequest, rows: QuerySet[CatalogModel]) -> None:
        actor = request.user.get_username()
        self.each(request, rows, lambda m: catalog.roll_back(model=m, actor=actor), "all go back")

    @display(description="Copies")
    def copies(self, model: CatalogModel) -> SafeString | str:
        """Each with its state; why there is none where there is none, and what would help."""
        if model.pk is None:
            return "-"
        rows = list(Replica.objects.filter(model=model).order_by("number"))
        for row in rows:
            row.model = model
        shown = table(("copy", "state", "reason"), [(_link(row), row.state, row.reason) for row in rows[:TOLD_COPIES]])
        why = next((row.explanation for row in rows if row.state == ReplicaState.PENDING and row.explanation), None)
        return format_html("{}{}", shown, panel(why)) if why else shown

    @display(description="engine")
    def engine(self, model: CatalogModel) -> str:
        return str(model.profile.get("engine", "")) if model.profile is not None else "endpoints"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        own = ["copies", "revision", "command"]
        return [*own, "name"] if obj else own

    @display(description="command")
    def command(self, model: CatalogModel) -> SafeString | str:
        return commands.of_model(model)

    def save_model(self, request: HttpRequest, obj: CatalogModel, form: Any, change: bool) -> None:
        catalog.save_entry(form.entry, actor=request.user.get_username())
        obj.pk = CatalogModel.objects.values_list("pk", flat=True).get(name=form.entry.name)

    def delete_row(self, row: CatalogModel, actor: str) -> None:
        catalog.delete_model(row.name, actor=actor)


@admin.register(ProfileRevision)
class ProfileRevisionAdmin(MachineOwnedAdmin):
    list_display = ["model", "number", "created_at"]
    list_filter = ["model"]
    list_select_related = ["model"]
    search_fields = ["model__name"]


@admin.register(Rollout)
class RolloutAdmin(MachineOwnedAdmin):
    list_display = ["model", "origin", "target", "shown_state", "reason", "created_at"]
    list_filter = ["state"]
    list_select_related = ["model"]
    search_fields = ["model__name", "reason"]

    @display(description="state", ordering="state", label=LABELS)
    def shown_state(self, rollout: Rollout) -> str:
        return rollout.state


@admin.register(DryCheck)
class DryCheckAdmin(MachineOwnedAdmin):
    list_display = ["rollout", "node", "shown_state", "code", "detail"]
    list_filter = ["state"]
    list_select_related = ["rollout__model", "node"]
    search_fields = ["node__name", "detail"]

    @display(description="state", ordering="state", label=LABELS)
    def shown_state(self, check: DryCheck) -> str:
        return check.state


@admin.register(ServedName)
class ServedNameAdmin(MachineOwnedAdmin):
    list_display = ["name", "model"]
    list_select_related = ["model"]
    search_fields = ["name"]
