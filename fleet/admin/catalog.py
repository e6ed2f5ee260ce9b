"""Catalog models: edited as the catalog file's entry, checked by the same rules, saved by the same service."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from agent_client.profile import Entry
from fleet.admin.base import MachineOwnedAdmin
from fleet.models import CatalogModel, ProfileRevision, ServedName
from fleet.services import catalog
from fleet.services.errors import FleetError


class CatalogModelForm(forms.ModelForm):
    entry: Entry | None = None

    class Meta:
        model = CatalogModel
        fields = ["name", "aliases", "replicas", "profile", "endpoints"]

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
class CatalogModelAdmin(ModelAdmin):
    form = CatalogModelForm
    list_display = ["name", "replicas", "kind", "revision", "updated_at"]
    list_filter = ["updated_at"]
    search_fields = ["name"]
    readonly_fields = ["revision"]

    def kind(self, model: CatalogModel) -> str:
        return "managed" if model.profile is not None else "endpoints"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ["revision", "name"] if obj else ["revision"]

    def save_model(self, request: HttpRequest, obj: CatalogModel, form: Any, change: bool) -> None:
        catalog.save_entry(form.entry, actor=request.user.get_username())
        obj.pk = CatalogModel.objects.values_list("pk", flat=True).get(name=form.entry.name)

    def delete_model(self, request: HttpRequest, obj: CatalogModel) -> None:
        try:
            catalog.delete_model(obj.name, actor=request.user.get_username())
        except FleetError as error:
            self.message_user(request, error.detail, messages.ERROR)

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        for model in queryset:
            self.delete_model(request, model)


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
