"""Catalog models: edited as the catalog file's entry, checked by the same rules, saved by the same service."""

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import Count, Q
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget

from agent_client.profile import Entry
from fleet.admin import commands
from fleet.admin.base import MachineOwnedAdmin, ServiceDeleteAdmin
from fleet.domain.states import ReplicaState
from fleet.models import CatalogModel, ProfileRevision, ServedName
from fleet.services import catalog
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


@admin.register(CatalogModel)
class CatalogModelAdmin(ServiceDeleteAdmin):
    form = CatalogModelForm
    list_display = ["name", "truth", "engine", "revision", "updated_at"]
    list_filter = ["updated_at"]
    search_fields = ["name"]
    fields = ["name", "aliases", "replicas", "profile", "endpoints", "revision", "command"]

    def get_queryset(self, request: HttpRequest) -> Any:
        ready = Count("replica_set", filter=Q(replica_set__state=ReplicaState.READY))
        return super().get_queryset(request).annotate(ready=ready)

    @display(description="ready")
    def truth(self, model: Any) -> str:
        return f"{model.ready} of {model.replicas}" if model.profile is not None else "-"

    @display(description="engine")
    def engine(self, model: CatalogModel) -> str:
        return str(model.profile.get("engine", "")) if model.profile is not None else "endpoints"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ["revision", "command", "name"] if obj else ["revision", "command"]

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


@admin.register(ServedName)
class ServedNameAdmin(MachineOwnedAdmin):
    list_display = ["name", "model"]
    list_select_related = ["model"]
    search_fields = ["name"]
