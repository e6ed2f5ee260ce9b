"""What comes behind the question mark of an address: names that the view knows, each once and with a value.

A filter that is misspelt, or empty because a script's variable was, would else answer with everything.
"""

from typing import Any

from django import forms
from django.db.models import BooleanField
from django_filters.rest_framework import BooleanFilter, DjangoFilterBackend, FilterSet
from rest_framework.exceptions import ValidationError
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

PAGES = ("limit", "offset")
#: Read by the framework itself, which refuses what it does not know.
ANYWHERE = ("format",)
MOST_NAME = 80
TRUE, FALSE = ("true", "1"), ("false", "0")


class KnownQuery(BasePermission):
    """A permission of every view, since each view has those. `any_query` is of one that only hands the query on."""

    def has_permission(self, request: Request, view: Any) -> bool:
        known = _known(request, view)
        wrong: dict[str, str] = {}
        for name, values in request.query_params.lists() if not getattr(view, "any_query", False) else ():
            if name not in known and name not in ANYWHERE:
                there = f"there are {', '.join(sorted(known))}" if known else "there is none here"
                wrong[name[:MOST_NAME]] = f"there is no such parameter; {there}"
            elif len(values) > 1:
                wrong[name] = "it stands there more than once"
            elif not values[0]:
                wrong[name] = "it has no value: give one, or leave it out"
        if wrong:
            raise ValidationError(wrong)
        return True


def _known(request: Request, view: Any) -> tuple[str, ...]:
    if request.method not in SAFE_METHODS or getattr(view, "action", "") != "list":
        return ()
    pages = PAGES if getattr(view, "paginator", None) is not None else ()
    return (*pages, *getattr(view, "filterset_fields", ()))


class _Boolean(forms.Field):
    def to_python(self, value: Any) -> bool | None:
        if value in (None, ""):
            return None
        if value.lower() in TRUE + FALSE:
            return str(value).lower() in TRUE
        raise forms.ValidationError("true or false is needed")


class _BooleanFilter(BooleanFilter):
    field_class = _Boolean

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.extra.pop("widget", None)


class _Filters(FilterSet):
    FILTER_DEFAULTS = {**FilterSet.FILTER_DEFAULTS, BooleanField: {"filter_class": _BooleanFilter}}


class KnownFilters(DjangoFilterBackend):
    """Where Django reads whatever is neither true nor false as no filter at all, it is an error."""

    filterset_base = _Filters
