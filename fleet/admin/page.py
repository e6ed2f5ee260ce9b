"""A row's page: the first sentence is the answer, then what can be done, then the facts. It renews itself."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.safestring import SafeString

from fleet import clock
from fleet.admin.base import ServiceDeleteAdmin


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A button: the list's action of that name, on this row alone. What is dangerous asks on a page of its own."""

    action: str
    label: str
    kind: str = ""  # "first": the best one


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    body: SafeString | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    sentence: SafeString | str
    following: SafeString | str = ""  # what happens next by itself
    acts: tuple[Act, ...] = ()
    sections: tuple[Section, ...] = ()


class LivePage(ServiceDeleteAdmin):
    """Mix it in before the admin class whose rows have such a page."""

    change_form_template = "fleet/page.html"
    list_before_template = "fleet/listed.html"
    delete_in_head = True  # else where unfold has it

    def page(self, row: Any, now: datetime) -> Page:
        raise NotImplementedError

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        row = kwargs.get("obj")
        if row is not None and request.method == "POST":  # a refused form has filled it with what was typed
            row = self.get_object(request, str(row.pk))
        if row is not None:
            now = clock.now()
            page = self.page(row, now)
            may_act = self.has_change_permission(request, row)
            context["page"] = {
                "sentence": page.sentence,
                "following": page.following,
                "acts": page.acts if may_act else (),
                "sections": page.sections,
                "now": now,
                "list_url": self.list_url(),
                "may_delete": self.delete_in_head and self.has_delete_permission(request, row),
                "delete_url": f"admin:{self.opts.app_label}_{self.opts.model_name}_delete",
            }
        return super().render_change_form(request, context, *args, **kwargs)


def sections(*given: tuple[str, SafeString | str]) -> tuple[Section, ...]:
    """Those that have something to say."""
    return tuple(Section(title=title, body=body) for title, body in given if body and body != "-")


def acts(*given: Act | None) -> tuple[Act, ...]:
    return tuple(each for each in given if each is not None)
