"""The catalog: apply, diff, export. Declarative and idempotent; the rules stand in agent_client.profile."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from agent_client.engines import preview
from agent_client.profile import Entry, Problem, ProfileError, parse_catalog, parse_entry
from agent_client.profile.hidden import shown_profile
from fleet import doorbell
from fleet.domain.patch import merged
from fleet.domain.states import ReplicaWish, RolloutState
from fleet.domain.words import counted
from fleet.models import CatalogModel, Node, ProfileRevision, Replica, Rollout, ServedName
from fleet.services import rollouts
from fleet.services.errors import FleetError
from fleet.services.events import record

#: So many models that would be removed are named.
TOLD_NAMES = 20
#: Of so many problems the hints are told, each once.
TOLD_HINTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    verb: str  # add, change, remove
    name: str
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        sign = {"add": "+", "change": "~", "remove": "-"}[self.verb]
        return f"{sign} {self.name}" + (f": {'; '.join(self.details)}" if self.details else "")


def read_entry(data: Any) -> Entry:
    """One entry; FleetError with every problem."""
    try:
        entry = parse_entry(data)
        refuse_unrunnable([entry], _versions())
    except ProfileError as error:
        raise _invalid(error) from None
    return entry


def refuse_unrunnable(entries: Iterable[Entry], versions: Mapping[str, Collection[str]] | None = None) -> None:
    """Raises ProfileError with what no node would run, as each node's own check would say it.

    `versions`: of each engine kind, those that the nodes have.
    """
    found: list[Problem] = []
    for entry in entries:
        if entry.profile is not None:
            found += preview.problems(entry, (versions or {}).get(entry.profile.engine, ()))
    if found:
        raise ProfileError(found)


def save_entry(entry: Entry, *, actor: str, new: bool = False) -> bool:
    """Create or change one model; whether anything changed. `new`: FleetError where it is there already."""
    try:
        with transaction.atomic():
            return _save(entry, actor, new)
    except IntegrityError:
        raise _taken(entry) from None


def _taken(entry: Entry) -> FleetError:
    """Which of its names has an owner, who may have gone meanwhile."""
    rows = ServedName.objects.filter(name__in=(entry.name, *entry.aliases)).exclude(model__name=entry.name)
    owner = rows.select_related("model").first()
    if owner is None:
        return FleetError("name_taken", f"cannot save {entry.name}: another model had one of its names", "try again")
    name, model = owner.name, owner.model
    text = f"cannot save {entry.name}: "
    text += f"there is a model {name}" if name == model.name else f"{name} is an alias of the model {model.name}"
    if model.leaving:
        return FleetError("name_taken", f"{text}, which is being removed", "try again when its last replica has ended")
    return FleetError("name_taken", text, f"choose another name, or take {name} from it first")


@transaction.atomic
def change_entry(name: str, patch: Mapping[str, Any], *, actor: str) -> Entry:
    """Change what the patch names and leave the rest (RFC 7396)."""
    model = CatalogModel.objects.select_for_update().filter(name=name, leaving=False).first()
    if model is None:
        raise FleetError("model_unknown", f"cannot change {name}: there is no such model")
    entry = read_entry(merged(_stored(model), dict(patch)))
    save_entry(entry, actor=actor)
    return entry


@transaction.atomic
def delete_model(name: str, *, actor: str) -> None:
    """Remove a model. Its replicas are stopped first; the row goes with the last of them."""
    model = CatalogModel.objects.select_for_update().filter(name=name).first()
    if model is None:
        raise FleetError("model_unknown", f"cannot delete {name}: there is no such model")
    # Locked, so that none of them is started between the question and the deletion.
    if any(Replica.objects.select_for_update().filter(model=model).values_list("attempt", flat=True)):
        CatalogModel.objects.filter(pk=model.pk).update(replicas=0, leaving=True)
        Replica.objects.filter(model=model).update(wish=ReplicaWish.REMOVE)
        record("model_leaving", f"{name} is deleted when its replicas have been stopped", actor=actor)
    else:
        Replica.objects.filter(model=model).delete()  # before the revisions, which they hold on to
        model.delete()
        record("model_deleted", f"{name} deleted", actor=actor)
    doorbell.ring_routes()  # first: it costs little, and clients wait for it
    doorbell.ring_reconcile()


@transaction.atomic
def roll_back(*, model: CatalogModel, actor: str) -> None:
    """Back to the revision before: a rollout under way is broken off; after a failed one the profile that runs is
    wished again, after a finished one the profile that ran before, as a new revision. Raises FleetError."""
    model = CatalogModel.objects.select_for_update().get(pk=model.pk)
    rollouts.refuse_leaving(model, "roll back")
    if rollouts.break_off(model=model, actor=actor):
        return
    if model.profile is None:
        raise FleetError("no_rollout", f"cannot roll back {model.name}: it has endpoints, and no revisions")
    before = _earlier(model)
    if before is None:
        hint = "a revision begins when a profile is changed"
        raise FleetError("no_rollout", f"cannot roll back {model.name}: no earlier profile of it is known", hint)
    record("rollback_began", f"{model.name} goes back to the profile of revision {before.number}", actor=actor)
    save_entry(read_entry(_stored(model) | {"profile": before.profile}), actor=actor)


def _earlier(model: CatalogModel) -> ProfileRevision | None:
    """The newest revision of another profile that all copies ran, or none had to change for."""
    if model.stable_revision != model.revision:
        return ProfileRevision.objects.get(model=model, number=model.stable_revision)
    tried = Rollout.objects.filter(model=model)
    done = tried.filter(state=RolloutState.DONE).values("target")
    never_ran = tried.exclude(target__in=done).values("target")
    older = ProfileRevision.objects.filter(model=model, number__lt=model.revision).exclude(number__in=never_ran)
    return next((each for each in older.order_by("-number") if each.profile != model.profile), None)


def diff_catalog(data: Any) -> tuple[Change, ...]:
    """What apply_catalog would do."""
    entries = _entries(data)
    kept = {model.name: model for model in CatalogModel.objects.filter(leaving=False)}
    changes = []
    for entry in entries:
        model = kept.pop(entry.name, None)
        if model is None:
            changes.append(Change(verb="add", name=entry.name))
        elif details := _differences(model, entry):
            changes.append(Change(verb="change", name=entry.name, details=details))
    changes += [Change(verb="remove", name=name) for name in sorted(kept)]
    return tuple(changes)


@transaction.atomic
def apply_catalog(data: Any, *, actor: str, prune: bool = False) -> tuple[Change, ...]:
    """Make the catalog what the file says, whole or not at all: add, change, and with `prune` remove what it does not
    name. Without it, where something would have to be removed, nothing changes: FleetError."""
    entries = {entry.name: entry for entry in _entries(data)}
    changes = diff_catalog(data)
    if not prune:
        _refuse_removal([change.name for change in changes if change.verb == "remove"])
    for change in sorted(changes, key=lambda each: each.verb != "remove"):  # a removed name may be another's alias now
        if change.verb == "remove":
            delete_model(change.name, actor=actor)
        else:
            save_entry(entries[change.name], actor=actor)
    return changes


def _refuse_removal(names: list[str]) -> None:
    if not names:
        return
    live = Replica.objects.filter(model__name__in=names).exclude(attempt=0).count()
    stopped = f" and end {counted(live, 'replica')}" if live else ""
    more = f" and {len(names) - TOLD_NAMES} more" if len(names) > TOLD_NAMES else ""
    raise FleetError(
        "would_remove",
        f"cannot apply the catalog: it does not name {', '.join(names[:TOLD_NAMES])}{more}, so it would remove "
        f"{'them' if len(names) > 1 else 'it'}{stopped}; nothing is changed",
        "give --prune to remove what the file does not name, or add what is to stay (`catalog export` prints it)",
    )


def export_catalog() -> dict[str, Any]:
    """The catalog as the data of a file that apply_catalog takes back without a change."""
    rows = CatalogModel.objects.filter(leaving=False).order_by("name")
    return {"models": [parse_entry(_stored(model)).to_dict() for model in rows]}


def _entries(data: Any) -> tuple[Entry, ...]:
    try:
        entries = parse_catalog(data).models
        refuse_unrunnable(entries, _versions())
    except ProfileError as error:
        raise _invalid(error) from None
    return entries


def _versions() -> dict[str, set[str]]:
    out: dict[str, set[str]] = {}
    for engines in Node.objects.values_list("engines", flat=True):
        for kind, version in engines.items():
            out.setdefault(str(kind), set()).add(str(version))
    return out


def _invalid(error: ProfileError) -> FleetError:
    hints = dict.fromkeys(problem.hint for problem in error.problems[:TOLD_HINTS] if problem.hint)
    return FleetError("invalid_catalog", str(error), "; ".join(hints))


def _stored(model: CatalogModel) -> dict[str, Any]:
    data: dict[str, Any] = {"name": model.name, "aliases": model.aliases, "routing": model.routing}
    if model.profile is not None:
        return data | {"replicas": model.replicas, "profile": model.profile}
    return data | {"endpoints": model.endpoints}


def _columns(entry: Entry) -> dict[str, Any]:
    data = entry.to_dict()
    return {
        "aliases": list(entry.aliases),
        "replicas": entry.replicas,
        "profile": data.get("profile"),
        "endpoints": data.get("endpoints"),
        "routing": data.get("routing", {}),
    }


def _differences(model: CatalogModel, entry: Entry) -> tuple[str, ...]:
    """In words for the history: without what is secret in a profile."""
    out = []
    for name, value in _columns(entry).items():
        before = getattr(model, name)
        if before == value:
            continue
        old, new = (shown_profile(part) if name == "profile" and part else part for part in (before, value))
        if isinstance(before, dict) and isinstance(value, dict):
            keys = sorted(key for key in before.keys() | value.keys() if before.get(key) != value.get(key))
            out += [f"{name}.{key}: {old.get(key)!r} → {new.get(key)!r}" for key in keys]
        else:
            out.append(f"{name}: {old!r} → {new!r}")
    return tuple(out)


def _save(entry: Entry, actor: str, new: bool) -> bool:
    model = CatalogModel.objects.select_for_update().filter(name=entry.name).first()
    columns = _columns(entry)
    if new and model is not None and not model.leaving:
        hint = "PUT replaces it, PATCH changes parts of it"
        raise FleetError("name_taken", f"cannot add {entry.name}: there is a model of that name", hint)
    if model is None:
        model = CatalogModel.objects.create(name=entry.name, **columns)
        renewed, before = True, 0
        record("model_added", f"{entry.name} added", actor=actor)
    else:
        details = _differences(model, entry)
        if not details and not model.leaving:
            return False
        renewed = model.profile != columns["profile"] or model.aliases != columns["aliases"]
        revision = model.revision + 1 if renewed else model.revision
        before = model.stable_revision
        CatalogModel.objects.filter(pk=model.pk).update(revision=revision, leaving=False, updated_at=Now(), **columns)
        model.refresh_from_db()
        record("model_changed", f"{entry.name}: {'; '.join(details) or 'wanted again'}", actor=actor)
    if renewed and entry.profile is not None:
        ProfileRevision.objects.get_or_create(
            model=model,
            number=model.revision,
            defaults={"profile": columns["profile"], "served_names": list(entry.served_names)},
        )
        rollouts.begin(model, before=before, actor=actor)
    ServedName.objects.filter(model=model).exclude(name__in=entry.served_names).delete()
    for name in entry.served_names:
        if not ServedName.objects.filter(model=model, name=name).exists():
            ServedName.objects.create(model=model, name=name)
    doorbell.ring_routes()  # first: it costs little, and clients wait for it
    doorbell.ring_reconcile()
    return True
