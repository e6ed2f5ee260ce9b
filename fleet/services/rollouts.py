"""Rollouts: begun by a changed profile, led by reconcile, paused, resumed and rolled back by people."""

from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F

from agent_client.profile import ProfileError, parse_profile
from agent_client.protocol.codec import plain_part, read_part
from agent_client.protocol.messages import Check, Checked, ShardSpec, ToldProblem
from fleet import doorbell
from fleet.domain.actions import AskNode
from fleet.domain.attention import Failed
from fleet.domain.rollout import needs_restart
from fleet.domain.states import CheckState, ReplicaState, RolloutState, Severity
from fleet.models import CatalogModel, DryCheck, Gpu, ProfileRevision, Replica, Rollout, Shard
from fleet.services.commands import wire_name
from fleet.services.errors import FleetError, StaleTransition
from fleet.services.events import record
from fleet.services.transitions import move_check, move_rollout

OPEN = (RolloutState.ROLLING, RolloutState.PAUSED)
#: Of an answer, a little more than an agent of ours tells: 30 and one line that counts the rest.
MOST_PROBLEMS, MOST_CODE, MOST_CHARACTERS = 31, 60, 1_000
SERVING = (ReplicaState.READY, ReplicaState.DRAINING)

_BECAME = {
    RolloutState.ROLLING: "goes on",
    RolloutState.PAUSED: "is paused",
    RolloutState.FAILED: "has failed",
    RolloutState.DONE: "is done",
    RolloutState.DROPPED: "was dropped",
}


def begin(model: CatalogModel, *, before: int, actor: str) -> None:
    """The model has a new revision; `before` is what its replicas go back to. Within the caller's transaction.

    Where nothing serves there is nothing to protect, and where engines need not be told nothing restarts: then the new
    revision is at once the stable one.
    """
    for rollout in Rollout.objects.filter(model=model, state__in=OPEN):
        move_rollout(rollout.pk, RolloutState.DROPPED, reason=f"revision {model.revision} took its place")
    old = ProfileRevision.objects.filter(model=model, number=before).first()
    new = ProfileRevision.objects.get(model=model, number=model.revision)
    rows = Replica.objects.filter(model=model)
    if old is not None and not _restarts(old, new):
        rows.filter(revision=old).update(revision=new)
        rows.filter(goal=before).update(goal=None)
        CatalogModel.objects.filter(pk=model.pk).update(stable_revision=model.revision)
        return
    if old is None or not rows.filter(state__in=SERVING, revision=old).exists():
        CatalogModel.objects.filter(pk=model.pk).update(stable_revision=model.revision)
        return
    Rollout.objects.create(model=model, origin=before, target=model.revision, actor=actor)
    record("rollout_began", f"{model.name}: revision {before} → {model.revision} begins", actor=actor)


def _restarts(old: ProfileRevision, new: ProfileRevision) -> bool:
    try:
        before, after = parse_profile(old.profile), parse_profile(new.profile)
    except ProfileError:
        return True
    return needs_restart(before, after, names_changed=old.served_names != new.served_names)


@transaction.atomic
def pause(*, model: CatalogModel, actor: str) -> None:
    """Nothing more goes over to the new revision until `resume`."""
    _move(_latest(model, "pause"), RolloutState.PAUSED, "pause", actor)


@transaction.atomic
def resume(*, model: CatalogModel, actor: str) -> None:
    """Go on with a paused rollout, or try one that failed again."""
    rollout = _latest(model, "resume")
    if rollout.state == RolloutState.FAILED and rollout.target == model.revision:
        Rollout.objects.create(model=model, origin=model.stable_revision, target=model.revision, actor=actor)
        record("rollout_began", f"{model.name}: revision {rollout.origin} → {rollout.target} once more", actor=actor)
        doorbell.ring_reconcile()
        return
    _move(rollout, RolloutState.ROLLING, "resume", actor)


@transaction.atomic
def break_off(*, model: CatalogModel, actor: str) -> bool:
    """Every replica goes back to the revision from before the rollout that is under way; False: there is none."""
    rollout = Rollout.objects.select_for_update().filter(model=model, state__in=OPEN).first()
    if rollout is not None:
        _move(rollout, RolloutState.FAILED, "roll back", actor, reason=f"rolled back by {actor}")
    return rollout is not None


def failed() -> dict[int, Failed]:
    """By model: the rollouts of revisions that are wished, and that no copy runs because they failed."""
    wished = Rollout.objects.filter(state=RolloutState.FAILED, target=F("model__revision"))
    rows = wished.exclude(model__stable_revision=F("target")).order_by("pk")  # the newest last
    return {
        model: Failed(pk=pk, target=target, reason=reason)
        for model, pk, target, reason in rows.values_list("model", "pk", "target", "reason")
    }


def refuse_leaving(model: CatalogModel, verb: str) -> None:
    """What is being deleted is led nowhere; a change of it would keep it."""
    if CatalogModel.objects.filter(pk=model.pk, leaving=True).exists():
        hint = "add it again to keep it"
        raise FleetError("model_leaving", f"cannot {verb} {model.name}: it is being deleted", hint)


def _latest(model: CatalogModel, verb: str) -> Rollout:
    refuse_leaving(model, verb)
    rollout = Rollout.objects.select_for_update().filter(model=model).order_by("-pk").first()
    if rollout is None:
        hint = "a rollout begins when a profile is changed while replicas serve"
        raise FleetError("no_rollout", f"cannot {verb} {model.name}: it has had no rollout", hint)
    return rollout


def _move(rollout: Rollout, state: RolloutState, verb: str, actor: str, *, reason: str = "") -> None:
    name = rollout.model.name
    try:
        move_rollout(rollout.pk, state, reason=reason)
    except StaleTransition:
        raise FleetError(
            "rollout_state", f"cannot {verb} {name}: its rollout to revision {rollout.target} is {rollout.state}"
        ) from None
    text = f"{name}: the rollout to revision {rollout.target} {_BECAME[state]}" + (f": {reason}" if reason else "")
    record(f"rollout_{state}", text, actor=actor)
    doorbell.ring_reconcile()


def end(rollout_id: int, state: RolloutState, *, reason: str) -> bool:
    """Done: the target is the stable revision now. Failed: the stable one stays, and all go back to it."""
    rollout = Rollout.objects.select_related("model").get(pk=rollout_id)
    try:
        move_rollout(rollout_id, state, reason=reason)
    except StaleTransition:
        return False
    if state is RolloutState.DONE:
        CatalogModel.objects.filter(pk=rollout.model_id).update(stable_revision=rollout.target)
    text = f"{rollout.model.name}: the rollout to revision {rollout.target} {_BECAME[state]}"
    text += f": {reason}; replicas go back to revision {rollout.origin}" if reason else ""
    severity = Severity.INFO if state is RolloutState.DONE else Severity.ERROR
    record(f"rollout_{state}", text, severity=severity, data={"model": rollout.model.name, "target": rollout.target})
    return True


# -- questions to nodes ------------------------------------------------------------------------------------------------


def ask(action: AskNode) -> bool:
    """Write the question; its delivery is the listener's. Within the caller's transaction."""
    revision = ProfileRevision.objects.select_related("model").get(model_id=action.model, number=action.revision)
    uuids = dict(Gpu.objects.filter(pk__in=action.part.gpus).values_list("pk", "uuid"))
    spec = ShardSpec(
        replica=f"{revision.model.name} at revision {revision.number}",
        served_names=tuple(revision.served_names) or (revision.model.name,),
        profile=revision.profile,
        revision=revision.number,
        rank=action.part.rank,
        nodes=int(revision.profile.get("nodes") or 1),
        gpus=tuple(uuids[gpu] for gpu in action.part.gpus if gpu in uuids),
        fabric_env=dict(action.part.fabric_env),
    )
    _, made = DryCheck.objects.get_or_create(
        rollout_id=action.rollout,
        node_id=action.part.node,
        defaults={"spec": plain_part(spec), "replaces": _held_by(action)},
    )
    doorbell.ring_nodes([action.part.node])
    return made


def _held_by(action: AskNode) -> str:
    """The shard whose cards the part would take over."""
    if action.replaces is None:
        return ""
    rows = Shard.objects.filter(replica_id=action.replaces, rank=action.part.rank, node_id=action.part.node)
    shard = rows.select_related("replica").order_by("-epoch").first()
    return wire_name(shard) if shard else ""


def check_message(check: DryCheck) -> Check:
    return Check(check=check.pk, spec=read_part(ShardSpec, check.spec), replaces=check.replaces)


@transaction.atomic
def answer_check(*, node_id: int, session_id: int, answer: Checked, now: datetime) -> None:
    """The node's word; a repeated or late one changes nothing."""
    state = CheckState.REFUSED if answer.code else CheckState.PASSED
    _answer(
        node_id,
        session_id,
        state,
        now,
        pk=answer.check,
        code=answer.code[:MOST_CODE],
        detail=answer.detail,
        hint=answer.hint,
        problems=[_kept(problem) for problem in answer.problems[:MOST_PROBLEMS]],
    )


def _kept(problem: ToldProblem) -> dict[str, str]:
    return {
        "code": problem.code[:MOST_CODE],
        "text": problem.text[:MOST_CHARACTERS],
        "hint": problem.hint[:MOST_CHARACTERS],
    }


@transaction.atomic
def skip_checks(*, node_id: int, session_id: int, now: datetime) -> None:
    """The node's agent is too old to be asked: its own checks at the start must do."""
    _answer(node_id, session_id, CheckState.SKIPPED, now, detail="its agent does not know this question")


def _answer(
    node_id: int, session_id: int, state: CheckState, now: datetime, *, pk: int | None = None, **fields: Any
) -> None:
    # By the node's newest session alone: there it is asked again.
    rows = DryCheck.objects.filter(node_id=node_id, node__session_id=session_id, state=CheckState.OPEN)
    keys = list((rows if pk is None else rows.filter(pk=pk)).values_list("pk", flat=True))
    for key in keys:
        move_check(key, state, answered_at=now, **fields)
    if keys:
        doorbell.ring_reconcile()
