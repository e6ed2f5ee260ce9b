"""What the pages of machine-owned rows share: nothing is added or edited by hand."""

from typing import Any

from django.contrib import messages
from django.db.models import Model, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from unfold.admin import ModelAdmin

from fleet.admin.confirm import way_back
from fleet.lookups import OfferedLookups
from fleet.services.errors import FleetError


class ServiceDeleteAdmin(OfferedLookups, ModelAdmin):
    """Deleting goes through a service, row by row, which may refuse; what goes with a row needs no permission."""

    delete_confirmation_template = "fleet/delete.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Each row with the time of the database, which has stamped it."""
        return super().get_queryset(request).annotate(database_now=Now())

    def delete_row(self, row: Any, actor: str) -> None:
        raise NotImplementedError

    def told_before_delete(self, row: Any) -> list[str]:
        """What will happen, in sentences with numbers."""
        return []

    def get_actions(self, request: HttpRequest) -> Any:
        """Without Django's own «delete selected»: it says «deleted» whatever a service answers."""
        return {name: action for name, action in super().get_actions(request).items() if name != "delete_selected"}

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Nothing is listed and nothing protected: the service knows what goes with a row, and when."""
        return [], {}, set(), []

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None) -> Any:
        row = self.get_object(request, object_id)
        told = {"told": self.told_before_delete(row), "back": self.page_of(row)} if row is not None else {}
        return super().delete_view(request, object_id, {**(extra_context or {}), **told})

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        self.each(request, [obj], lambda row: self.delete_row(row, request.user.get_username()), "deleted")

    def response_delete(self, request: HttpRequest, obj_display: str, obj_id: Any) -> HttpResponse:
        """The row's own message was given; Django's would claim success."""
        return HttpResponseRedirect(self.list_url())

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        """Back to the page whose button it was."""
        answer = super().response_action(request, queryset)
        return HttpResponseRedirect(way_back(request)) if isinstance(answer, HttpResponseRedirect) else answer

    def list_url(self) -> str:
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")

    def page_of(self, row: Any) -> str:
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=[row.pk])

    def name_of(self, row: Any) -> str:
        """As a message or a question names it."""
        return str(row)

    def each(self, request: HttpRequest, rows: Any, act: Any, done: str) -> None:
        """Do one service call per row and say what came of each."""
        for row in rows:
            name = self.name_of(row)
            try:
                act(row)
            except FleetError as error:
                self.message_user(request, f"{error.detail}. {error.hint}".strip(), messages.ERROR)
            else:
                self.message_user(request, f"{name}: {done}", messages.SUCCESS)


class MachineOwnedAdmin(ServiceDeleteAdmin):
    """Rows that agents and the reconciler write."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """By actions alone, and only for those who may: there is no form to save."""
        acting = request.method in ("GET", "HEAD") or "action" in request.POST
        return acting and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Nothing to save: no buttons that say so."""
        hidden = {"show_save": False, "show_save_and_continue": False, "show_save_and_add_another": False}
        return super().changeform_view(request, object_id, form_url, {**(extra_context or {}), **hidden})

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return [
            *self.readonly_fields,
            *(f.name for f in self.opts.fields if f.editable and f.name not in (self.exclude or ())),
        ]
