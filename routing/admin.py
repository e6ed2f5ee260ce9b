"""Keys and usage."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from routing.models import ApiKey, Usage


@admin.register(ApiKey)
class ApiKeyAdmin(ModelAdmin):
    """Keys are made by `manage.py router_key`, which shows them once; here they are limited and revoked."""

    list_display = ["name", "prefix", "expires_at", "revoked_at", "may_manage", "created_at"]
    list_filter = ["may_manage", "revoked_at"]
    search_fields = ["name", "prefix"]
    fields = ["name", "prefix", "allowed_models", "expires_at", "revoked_at", "may_manage"]
    readonly_fields = ["prefix"]

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Usage)
class UsageAdmin(ModelAdmin):
    list_display = ["at", "model", "key", "status", "completed", "prompt_tokens", "completion_tokens", "seconds"]
    list_filter = ["completed", "status", "model"]
    list_select_related = ["key"]
    search_fields = ["model", "endpoint"]
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
