"""A page between an action and what it does: what will happen to which rows, how long they have, how to undo it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib.admin import ModelAdmin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.http import url_has_allowed_host_and_scheme

from fleet.services.drains import LONGEST_DRAIN_SECONDS


class DrainForm(forms.Form):
    deadline_seconds = forms.FloatField(
        min_value=0,
        max_value=LONGEST_DRAIN_SECONDS,
        label="Deadline in seconds",
        help_text="what still runs then is stopped; 0 stops it now",
        widget=forms.NumberInput(attrs={"step": "any"}),
    )
    reason = forms.CharField(max_length=500, required=False, help_text="shown beside the cordon")


class TimeForm(forms.Form):
    """For what is stopped and has nobody to be told a reason."""

    deadline_seconds = DrainForm.base_fields["deadline_seconds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One row that it is about, and what that means for it."""

    pk: int
    name: str
    text: str


def ask(
    admin: "ModelAdmin[Any]",
    request: HttpRequest,
    rows: QuerySet[Any],
    *,
    title: str,
    explain: str,
    undo: str = "",
    severity: str = "danger",
    tell: Callable[[Any], str] | None = None,
    form: type[forms.Form] = forms.Form,
    initial: dict[str, Any] | None = None,
) -> dict[str, Any] | TemplateResponse:
    """What was given on the page once it is confirmed; until then the page itself. `tell`: of one row, with numbers."""
    confirmed = "confirmed" in request.POST
    asked = form(request.POST) if confirmed else form(initial=initial)
    if confirmed and asked.is_valid():
        return asked.cleaned_data
    found = list(rows)
    name = getattr(admin, "name_of", str)
    context = {
        **admin.admin_site.each_context(request),
        "opts": admin.opts,
        "title": title,
        "explain": explain,
        "undo": undo,
        "severity": severity,
        "rows": [Line(pk=row.pk, name=name(row), text=tell(row) if tell else "") for row in found],
        "kind": admin.opts.verbose_name if len(found) == 1 else admin.opts.verbose_name_plural,
        "form": asked,
        "action": request.POST.get("action", ""),
        "back": way_back(request),
    }
    return TemplateResponse(request, "fleet/confirm.html", context)


def way_back(request: HttpRequest) -> str:
    """The page whose button was pressed; else the list."""
    given = request.POST.get("back", "")
    ours = url_has_allowed_host_and_scheme(given, allowed_hosts={request.get_host()}, require_https=request.is_secure())
    return given if ours else request.get_full_path()
