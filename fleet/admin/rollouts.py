"""Rollouts: how far each is, what it waits for, and the buttons that lead it."""

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.decorators import display

from agent_client.profile.hidden import shown_profile
from fleet.admin.base import MachineOwnedAdmin
from fleet.admin.card import problems_of, told_problems
from fleet.admin.confirm import ask
from fleet.admin.display import LABELS, badge, lasting, link, plain, table, when
from fleet.admin.page import Act, LivePage, Page, acts, sections
from fleet.domain.states import CheckState, ReplicaState, RolloutState
from fleet.domain.words import counted
from fleet.models import CatalogModel, DryCheck, ProfileRevision, Replica, Rollout
from fleet.services import catalog, rollouts
from fleet.services.errors import FleetError
from fleet.services.explanations import why_rollout_waits

#: What the confirm page says before a rollback.
ROLL_BACK: dict[str, Any] = {
    "title": "Roll back",
    "explain": "A rollout that is under way ends here, and what has gone over goes back. After a failed one the "
    "profile that runs is wished again, after a finished one the profile that ran before, as a new revision. Replicas "
    "go one after another; no request is cut.",
    "undo": "After a rollout that was broken off, «Resume» tries the new profile once more; after a finished one, roll "
    "back again.",
}
_SENTENCES = {
    RolloutState.ROLLING: "has been under way for {}",
    RolloutState.PAUSED: "has been paused for {}",
    RolloutState.FAILED: "failed {} ago",
    RolloutState.DONE: "was done {} ago",
    RolloutState.DROPPED: "was dropped {} ago",
}
_BACK_FROM = (*rollouts.OPEN, RolloutState.DONE)
_FOLLOWING = {
    RolloutState.ROLLING: "One replica after another goes over. If the new revision fails, all go back by themselves.",
    RolloutState.PAUSED: "Nothing more goes over until it is resumed.",
    RolloutState.FAILED: "All replicas go back to the old revision. The catalog keeps the new profile; «Roll back» "
    "wishes again what runs.",
}


@admin.register(Rollout)
class RolloutAdmin(LivePage, MachineOwnedAdmin):
    list_display = ["model", "revisions", "shown_state", "reason", "actor", "began"]
    list_filter = ["state"]
    list_select_related = ["model"]
    search_fields = ["model__name", "reason"]
    actions = ["pause", "resume", "roll_back"]

    @display(description="revision", ordering="target")
    def revisions(self, rollout: Rollout) -> str:
        return f"{rollout.origin} → {rollout.target}"

    @display(description="state", ordering="state", label=LABELS)
    def shown_state(self, rollout: Rollout) -> str:
        return rollout.state

    @display(description="began", ordering="created_at")
    def began(self, rollout: Any) -> SafeString | str:
        return when(rollout.created_at, rollout.database_now)

    def page(self, row: Rollout, now: datetime) -> Page:
        by = f" It was begun by {row.actor}." if row.actor else ""
        why = f" Why: {row.reason}." if row.reason else ""
        name, state = row.model.name, told_state(row, now)
        waits = told_waits(row)
        begun = format_html("The rollout of {} from revision {} to {} {}.", name, row.origin, row.target, state)
        return Page(
            sentence=begun,
            following=f"{waits}{_following(row)}{why}{by}".strip(),
            acts=rollout_acts(row),
            sections=sections(
                ("Replicas", progress(row, now)),
                ("What changes", _changes(row)),
                ("What the nodes said", _answers(row)),
            ),
        )

    @admin.action(description="Pause", permissions=["change"])
    def pause(self, request: HttpRequest, rows: QuerySet[Rollout]) -> None:
        self._lead(request, rows, rollouts.pause, "paused")

    @admin.action(description="Resume, or try a failed one again", permissions=["change"])
    def resume(self, request: HttpRequest, rows: QuerySet[Rollout]) -> None:
        self._lead(request, rows, rollouts.resume, "goes on")

    @admin.action(description="Roll back to the revision before", permissions=["change"])
    def roll_back(self, request: HttpRequest, rows: QuerySet[Rollout]) -> Any:
        chosen = rows.select_related("model")
        given = ask(self, request, chosen, **ROLL_BACK, tell=lambda rollout: told_of_roll_back(rollout.model))
        return given if not isinstance(given, dict) else self._lead(request, rows, catalog.roll_back, "all go back")

    def _lead(self, request: HttpRequest, rows: QuerySet[Rollout], act: Any, done: str) -> None:
        actor = request.user.get_username()

        def one(rollout: Rollout) -> None:
            if not _newest(rollout):
                raise FleetError("rollout_old", f"cannot change {rollout}: a newer rollout has taken its place")
            act(model=rollout.model, actor=actor)

        self.each(request, rows.select_related("model"), one, done)


def undecided(rollout: Rollout) -> bool:
    """It failed, and what it was to bring in is still wished."""
    return rollout.state == RolloutState.FAILED and rollout.target == rollout.model.revision


def _following(rollout: Rollout) -> str:
    if rollout.state == RolloutState.FAILED and not undecided(rollout):
        return f"Revision {rollout.model.revision} is wished since."
    return _FOLLOWING.get(RolloutState(rollout.state), "")


def rollout_acts(rollout: Rollout | None) -> tuple[Act, ...]:
    """The buttons that make sense for it; of an older rollout none does."""
    if rollout is None or not _newest(rollout):
        return ()
    state = RolloutState(rollout.state)
    again = undecided(rollout)
    return acts(
        Act(action="resume", label="Resume", kind="first") if state is RolloutState.PAUSED else None,
        Act(action="resume", label="Try once more") if again else None,
        Act(action="pause", label="Pause") if state is RolloutState.ROLLING else None,
        Act(action="roll_back", label="Roll back …") if again or state in _BACK_FROM else None,
    )


def told_state(rollout: Rollout, now: datetime) -> SafeString:
    """ "has been paused for 5 min 10 s"."""
    return format_html(_SENTENCES[RolloutState(rollout.state)], lasting(rollout.state_at, now))


def told_waits(rollout: Rollout) -> str:
    """ "It waits for …. "; a paused one says so by itself."""
    waits = "" if rollout.state == RolloutState.PAUSED else why_rollout_waits(rollout)
    return f"{waits[0].upper()}{waits[1:]}. " if waits else ""


def told_of_roll_back(model: CatalogModel) -> str:
    """What goes back, in numbers."""
    rollout = Rollout.objects.filter(model=model).order_by("-pk").first()
    if rollout is None:
        return "it has had no rollout"
    if rollout.state == RolloutState.FAILED:
        return f"revision {model.stable_revision}, which runs, is wished again"
    rows = Replica.objects.filter(model=model)
    over = rows.filter(revision__number=rollout.target).count()
    told = f"{counted(over, 'replica')} of {rows.count()} {'runs' if over == 1 else 'run'} revision {rollout.target}"
    back = f"revision {rollout.origin}" if rollout.state in rollouts.OPEN else "the profile before it"
    return f"{told} and {'goes' if over == 1 else 'go'} back to {back}"


def progress(rollout: Rollout, now: datetime) -> SafeString | str:
    """Each replica with the revision that it runs and the one it goes to."""
    rows = list(Replica.objects.filter(model=rollout.model).select_related("model", "revision").order_by("number"))
    if not rows:
        return ""
    told: SafeString | str = ""
    if rollout.state in rollouts.OPEN:
        over = sum(row.revision.number == rollout.target and row.state == ReplicaState.READY for row in rows)
        whole = rollout.model.replicas
        bar = format_html('<progress max="{}" value="{}" aria-label="replicas gone over"></progress>', whole, over)
        told = format_html("<p>{} of {} run revision {} and are ready. {}</p>", over, whole, rollout.target, bar)
    lines = []
    for row in rows:
        goal = f"{row.revision.number} → {row.goal}" if row.goal else str(row.revision.number)
        state = badge(ReplicaState(row.state))
        lines.append((link(row, row.label), goal, state, when(row.state_at, now), row.reason))
    return format_html("{}{}", told, table(("replica", "revision", "state", "since", "reason"), lines))


def _newest(rollout: Rollout) -> bool:
    return not Rollout.objects.filter(model=rollout.model_id, pk__gt=rollout.pk).exists()


def _changes(rollout: Rollout) -> SafeString | str:
    """The fields of the profile that differ."""
    found = ProfileRevision.objects.filter(model=rollout.model, number__in=[rollout.origin, rollout.target])
    profiles = {each.number: each.profile for each in found}
    old, new = profiles.get(rollout.origin, {}), profiles.get(rollout.target, {})
    old_shown, new_shown = shown_profile(old), shown_profile(new)
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name) and name != "env")
    rows = [(name, _said(old_shown.get(name)), _said(new_shown.get(name))) for name in names]
    if old.get("env") != new.get("env"):
        rows.append(("env", "", "changed"))  # values may be secrets
    return table(("field", f"revision {rollout.origin}", f"revision {rollout.target}"), rows)


def _said(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def _answers(rollout: Rollout) -> SafeString | str:
    rows = [
        (link(check.node, check.node.name), badge(CheckState(check.state)), _told(check))
        for check in rollout.checks.select_related("node").order_by("node__name")
    ]
    return table(("node", "answer", "why"), rows)


def _told(check: DryCheck) -> SafeString | str:
    """Each problem with what helps; of an answer without one, the word that came with it."""
    return told_problems(problems_of("", check.found)) or check.detail


@admin.register(DryCheck)
class DryCheckAdmin(MachineOwnedAdmin):
    list_display = ["rollout", "node", "shown_state", "code", "detail"]
    list_filter = ["state"]
    list_select_related = ["rollout__model", "node"]
    search_fields = ["node__name", "detail"]
    exclude = ["spec", "problems"]
    readonly_fields = ["shown_problems", "shown_spec"]

    @display(description="problems")
    def shown_problems(self, check: DryCheck) -> SafeString | str:
        return _told(check)

    @display(description="spec")
    def shown_spec(self, check: DryCheck) -> SafeString:
        spec: dict[str, Any] = check.spec
        return plain(spec | {"profile": shown_profile(spec.get("profile") or {})})

    @display(description="state", ordering="state", label=LABELS)
    def shown_state(self, check: DryCheck) -> str:
        return check.state
