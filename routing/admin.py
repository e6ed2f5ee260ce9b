"""Keys, usage, and which endpoints are left out."""

from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin import EmptyFieldListFilter
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery, Sum
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.admin import ModelAdmin
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget

from fleet.endpoints import ring_routes
from fleet.fields import NamesField
from fleet.lookups import OfferedLookups
from fleet.seen import SeenAdmin, SeenForm
from routing.domain import limits
from routing.models import ApiKey, Ejection, Usage
from routing.services import BadKeyName, KeyNameTaken, change_key, create_key, not_in_catalog, revoke_key


def brief(number: int) -> str:
    """ "600", "64,000", "2 M", "5 G": limits are round figures."""
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:,}"


def last_day() -> list[dict[str, Any]]:
    """By model: requests, those that failed or were cut, and tokens; the busiest first."""
    rows: Any = Usage.objects.filter(at__gte=timezone.now() - timedelta(days=1)).order_by().values("model")
    failed = Count("pk", filter=Q(status__gte=400) | Q(completed=False))
    figures: Any = {"requests": Count("pk"), "failed": failed, "into": Sum("prompt_tokens")}
    found = rows.annotate(**figures, out=Sum("completion_tokens")).order_by("-requests")[:20]
    return [{**row, "into": brief(row["into"] or 0), "out": brief(row["out"] or 0)} for row in found]


class ApiKeyForm(SeenForm):
    def name(self) -> str:
        return str(self.instance.name)

    class Meta:
        model = ApiKey
        fields = "__all__"
        field_classes = {"allowed_models": NamesField}
        widgets = {"allowed_models": UnfoldAdminTextareaWidget(attrs={"rows": 2})}
        error_messages = {"name": {"unique": "cannot save it: there is a key of that name"}}
        help_texts = {
            "allowed_models": "names that it may ask for, with commas between them, such as bge-m3, qwen; empty: all",
            "requests_per_minute": "each limit left empty is none; what goes beyond is answered with 429",
            "expires_at": "UTC; from then on it is answered with 401",
            "may_manage": "may also use the REST API, that is, change the fleet",
        }


@admin.register(ApiKey)
class ApiKeyAdmin(OfferedLookups, SeenAdmin, ModelAdmin):
    """A key's text is shown once, when it is made."""

    form = ApiKeyForm
    refusals = (BadKeyName, KeyNameTaken)

    list_display = ["name", "prefix", "state", "limits", "models", "this_month", "may_manage"]
    list_filter = ["may_manage", ("revoked_at", EmptyFieldListFilter)]
    search_fields = ["name", "prefix"]
    fields = ["name", "prefix", "allowed_models", *limits.NAMES, "expires_at", "revoked_at", "may_manage"]
    readonly_fields = ["prefix", "revoked_at"]
    actions = ["revoke"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[ApiKey]:
        begin = timezone.now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        rows = Usage.objects.filter(key=OuterRef("pk"), at__gte=begin).order_by().values("key")
        both = Sum("prompt_tokens", default=0) + Sum("completion_tokens", default=0)
        return super().get_queryset(request).annotate(used=Subquery(rows.annotate(tokens=both).values("tokens")))

    @display(description="state", label={"in use": "success", "revoked": "default", "expired": "warning"})
    def state(self, key: ApiKey) -> str:
        if key.revoked_at:
            return "revoked"
        return "expired" if key.expires_at and key.expires_at <= timezone.now() else "in use"

    @display(description="limits")
    def limits(self, key: ApiKey) -> str:
        """In few words; the key's own page has each."""
        words = zip(limits.NAMES, ("requests/min", "tokens/min", "at once", "tokens/month"), strict=True)
        told = [f"{brief(getattr(key, name))} {word}" for name, word in words if getattr(key, name) is not None]
        until = [f"until {key.expires_at:%Y-%m-%d}"] if key.expires_at and not key.revoked_at else []
        return ", ".join(told + until) or "none"

    @display(description="models")
    def models(self, key: ApiKey) -> str:
        return ", ".join(key.allowed_models) if key.allowed_models is not None else "all"

    @display(description="tokens this month", ordering="used")
    def this_month(self, key: Any) -> str:
        return brief(key.used or 0)

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        fields = {name: form.cleaned_data[name] for name in form.cleaned_data if name in form.fields}
        if warning := not_in_catalog(fields["allowed_models"]):
            self.message_user(request, warning, messages.WARNING)
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

    @admin.action(description="Revoke the selected keys", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> TemplateResponse | None:
        if "confirmed" not in request.POST:
            return self._ask(request, queryset)
        for key in queryset:
            revoke_key(key, now=timezone.now())
            self.message_user(request, f"{key}: revoked", messages.SUCCESS)
        return None

    def _ask(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> TemplateResponse:
        """Before a key ends: who is cut off, by what they did in the last day."""
        day = timezone.now() - timedelta(days=1)
        rows = list(queryset.annotate(lately=Count("usage", filter=Q(usage__at__gte=day))))
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": "Revoke",
            "explain": "Requests with these keys are answered with 401 within seconds; answers under way go on.",
            "undo": "A revoked key can't be used again: make a new one.",
            "severity": "danger",
            "rows": [{"pk": k.pk, "name": str(k), "text": f"{k.lately} requests in the last day"} for k in rows],
            "kind": self.opts.verbose_name if len(rows) == 1 else self.opts.verbose_name_plural,
            "action": "revoke",
            "back": request.get_full_path(),
        }
        return TemplateResponse(request, "fleet/confirm.html", context)


class ReadOnlyAdmin(OfferedLookups, ModelAdmin):
    """Rows that routers write."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Usage)
class UsageAdmin(ReadOnlyAdmin):
    list_display = ["when", "model", "who", "status", "completed", "tokens_in", "tokens_out", "took"]
    list_filter = ["completed", "status", "model"]
    list_select_related = ["key"]
    search_fields = ["model", "endpoint", "key__name"]
    show_full_result_count = False
    list_before_template = "routing/usage.html"

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        return super().changelist_view(request, {**(extra_context or {}), "day": last_day()})

    @display(description="when (UTC)", ordering="at")
    def when(self, row: Usage) -> SafeString:
        return format_html('<span class="fleet-short">{}</span>', row.at.strftime("%Y-%m-%d %H:%M:%S"))

    @display(description="key", ordering="key__name")
    def who(self, row: Usage) -> str:
        return row.key.name if row.key else "none"

    @display(description="tokens in", ordering="prompt_tokens")
    def tokens_in(self, row: Usage) -> str:
        return "" if row.prompt_tokens is None else f"{row.prompt_tokens:,}"

    @display(description="tokens out", ordering="completion_tokens")
    def tokens_out(self, row: Usage) -> str:
        return "" if row.completion_tokens is None else f"{row.completion_tokens:,}"

    @display(description="took", ordering="seconds")
    def took(self, row: Usage) -> SafeString | str:
        return "" if row.seconds is None else format_html('<span class="fleet-short">{} s</span>', f"{row.seconds:.2f}")


@admin.register(Ejection)
class EjectionAdmin(ReadOnlyAdmin):
    list_display = ["endpoint", "model", "reason", "failures", "since", "until", "router"]
    search_fields = ["endpoint", "model"]
