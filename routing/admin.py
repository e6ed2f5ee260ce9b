"""Keys, usage, and which endpoints are left out."""

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from unfold.admin import ModelAdmin

from fleet.endpoints import ring_routes
from routing.models import ApiKey, Ejection, Usage
from routing.services import change_key, create_key, revoke_key

LIMITS = ["requests_per_minute", "tokens_per_minute", "concurrency", "tokens_per_month"]


@admin.register(ApiKey)
class ApiKeyAdmin(ModelAdmin):
    """A key's text is shown once, when it is made."""

    list_display = ["name", "prefix", *LIMITS, "expires_at", "revoked_at", "may_manage", "created_at"]
    list_filter = ["may_manage", "revoked_at"]
    search_fields = ["name", "prefix"]
    fields = ["name", "prefix", "allowed_models", *LIMITS, "expires_at", "revoked_at", "may_manage"]
    readonly_fields = ["prefix", "revoked_at"]
    actions = ["revoke"]

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        fields = {name: form.cleaned_data[name] for name in form.cleaned_data if name in form.fields}
        if change:
            change_key(obj, fields)
            return
        row, text = create_key(**fields)
        obj.pk = row.pk
        self.message_user(request, f"{row.name}: {text} (shown once: copy it now)", messages.WARNING)

    def delete_model(self, request: HttpRequest, obj: ApiKey) -> None:
        super().delete_model(request, obj)
        ring_routes()

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        super().delete_queryset(request, queryset)
        ring_routes()

    @admin.action(description="Revoke the selected keys")
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        for key in queryset:
            revoke_key(key, now=timezone.now())
            self.message_user(request, f"{key}: revoked", messages.SUCCESS)


class ReadOnlyAdmin(ModelAdmin):
    """Rows that routers write."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Usage)
class UsageAdmin(ReadOnlyAdmin):
    list_display = ["at", "model", "key", "status", "completed", "prompt_tokens", "completion_tokens", "seconds"]
    list_filter = ["completed", "status", "model"]
    list_select_related = ["key"]
    search_fields = ["model", "endpoint"]
    show_full_result_count = False


@admin.register(Ejection)
class EjectionAdmin(ReadOnlyAdmin):
    list_display = ["endpoint", "model", "reason", "failures", "since", "until", "router"]
    search_fields = ["endpoint", "model"]
