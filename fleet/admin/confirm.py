"""A page between an action and what it does: what will happen to which rows, and how long they have."""

from typing import Any

from django import forms
from django.contrib.admin import ModelAdmin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse

from fleet.services.operations import LONGEST_DRAIN_SECONDS


class DrainForm(forms.Form):
    deadline_seconds = forms.FloatField(
        min_value=0,
        max_value=LONGEST_DRAIN_SECONDS,
        label="Deadline in seconds",
        help_text="what still runs then is stopped; 0 stops it now",
    )
    reason = forms.CharField(max_length=500, required=False)


def ask(
    admin: "ModelAdmin[Any]",
    request: HttpRequest,
    rows: QuerySet[Any],
    *,
    title: str,
    explain: str,
    form: type[forms.Form] = forms.Form,
    initial: dict[str, Any] | None = None,
) -> dict[str, Any] | TemplateResponse:
    """What was given on the page once it is confirmed; until then the page itself."""
    confirmed = "confirmed" in request.POST
    asked = form(request.POST) if confirmed else form(initial=initial)
    if confirmed and asked.is_valid():
        return asked.cleaned_data
    context = {
        **admin.admin_site.each_context(request),
        "title": title,
        "explain": explain,
        "rows": list(rows),
        "form": asked,
        "action": request.POST.get("action", ""),
        "back": request.get_full_path(),
    }
    return TemplateResponse(request, "fleet/confirm.html", context)
