"""Forms of rows that two people may edit at once: what a page was made of is sent back with it and compared.

Who saves a page that is stale is told what others have changed meanwhile, with what was typed still there; saving once
more is then meant. The mark is no secret and no proof: a form without one is not compared.
"""

import hashlib
import json
from typing import Any

from django import forms
from django.contrib.admin.utils import unquote
from django.db import transaction
from django.http import HttpRequest
from django.urls import reverse

MOST_MARK = 4_000
EMPTY: tuple[Any, ...] = (None, "", [], {})


class _Mark(forms.CharField):
    widget = forms.HiddenInput

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Shown again, a form has the mark of now."""
        return initial


class SeenForm(forms.ModelForm):
    """`refusal`: why the service did not take it, when it was tried."""

    seen = _Mark(required=False, label="")
    refusal = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is None:
            return
        shown = [field for field in self.instance._meta.fields if field.name in self.fields]
        self._now = {field.name: _digest(field.value_from_object(self.instance)) for field in shown}
        self.initial["seen"] = json.dumps({"of": self.name(), "is": self._now, "leaving": self.leaving()})

    def name(self) -> str:
        return str(self.instance)

    def leaving(self) -> bool:
        """Deleted, and still there until what hangs on it has ended."""
        return False

    def changed_by(self) -> str:
        """Who changed the row last, as far as it is known."""
        return ""

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        given.pop("seen", None)
        if self.refusal:
            raise forms.ValidationError(self.refusal, code="refused")
        if self.instance.pk is None:
            return given
        mark = read_mark(self.data.get("seen"))
        if self.leaving() and mark.get("leaving") is False:
            text = f"cannot save {self.name()}: it was deleted meanwhile. Saving once more keeps it."
            raise forms.ValidationError(text, code="stale")
        seen = mark.get("is", {})
        stale = [name for name, now in self._now.items() if seen.get(name, now) != now]
        stale = [name for name in stale if name not in given or _digest(given[name]) != self._now[name]]
        if stale:
            names = [str(self.fields[name].label).lower() for name in stale]
            told = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
            by = f" by {who}" if (who := self.changed_by()) else ""
            were = "were" if len(names) > 1 or told.endswith("s") else "was"
            text = (
                f"cannot save {self.name()}: its {told} {were} changed meanwhile{by}. "
                "Open it in another tab to see how; saving once more replaces it by what is written here."
            )
            raise forms.ValidationError(text, code="stale")
        return given


class SeenAdmin:
    """Mix it in before the admin class of rows with such a form. `refusals`: what their service raises."""

    refusals: tuple[type[Exception], ...] = ()
    add_when_gone = False

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        shown = list(super().get_fields(request, obj))  # type: ignore[misc]
        return [*shown, "seen"] if obj is not None else shown

    def get_form(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, **kwargs)  # type: ignore[misc]
        form.refusal = getattr(request, "refusal", "")
        return form

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> Any:
        show: Any = super().changeform_view  # type: ignore[misc]
        if request.method != "POST":
            return show(request, object_id, form_url, extra_context)
        try:
            with transaction.atomic():
                if object_id is not None and not self._lock(request, object_id) and self.add_when_gone:
                    return self._as_new(request, show, extra_context)
                return show(request, object_id, form_url, extra_context)
        except self.refusals as error:
            detail, hint = getattr(error, "detail", str(error)), getattr(error, "hint", "")
            request.refusal = f"{detail}. {hint}".strip()  # type: ignore[attr-defined]
            return show(request, object_id, form_url, extra_context)

    def _lock(self, request: HttpRequest, object_id: str) -> bool:
        """So that nobody saves between the comparison and the saving. False: it is not there."""
        row: Any = self.get_object(request, unquote(object_id))  # type: ignore[attr-defined]
        return row is not None and type(row)._base_manager.select_for_update().filter(pk=row.pk).exists()

    def _as_new(self, request: HttpRequest, show: Any, extra_context: Any) -> Any:
        """The page of a new row, with what was typed for the one that is gone."""
        name = str(read_mark(request.POST.get("seen")).get("of", ""))[:200]
        given: Any = request.POST.copy()
        given.setdefault("name", name)
        request.POST = given
        request.refusal = f"cannot save {name}: it was deleted meanwhile. Saving once more adds it anew."  # type: ignore[attr-defined]
        opts: Any = self.opts  # type: ignore[attr-defined]
        return show(request, None, reverse(f"admin:{opts.app_label}_{opts.model_name}_add"), extra_context)


def read_mark(text: Any) -> dict[str, Any]:
    """The row's name, the digest of each field, and whether it was leaving; empty where it is none of ours."""
    try:
        data = json.loads(text) if isinstance(text, str) and len(text) < MOST_MARK else {}
    except (ValueError, RecursionError):
        data = {}
    return data if isinstance(data, dict) and isinstance(data.get("is"), dict) else {}


def _digest(value: Any) -> str:
    text = json.dumps(None if value in EMPTY else value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
