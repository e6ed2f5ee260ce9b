"""What the pages of machine-owned rows share: nothing is added or edited by hand."""

from typing import Any

from django.contrib import messages
from django.db.models import Model
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from fleet.services.errors import FleetError


class MachineOwnedAdmin(ModelAdmin):
    """Rows that agents and the reconciler write."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return request.method in ("GET", "HEAD") or "action" in request.POST

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return [*self.readonly_fields, *(f.name for f in self.opts.fields if f.editable)]

    def each(self, request: HttpRequest, rows: Any, act: Any, done: str) -> None:
        """Do one service call per row and say what came of each."""
        for row in rows:
            try:
                act(row)
            except FleetError as error:
                self.message_user(request, f"{error.detail}. {error.hint}".strip(), messages.ERROR)
            else:
                self.message_user(request, f"{row}: {done}", messages.SUCCESS)
