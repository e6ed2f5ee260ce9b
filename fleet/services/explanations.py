"""Where each copy of a model runs, or why it can't: computed now, so that it is true even when nothing reconciles."""

from dataclasses import dataclass

from agent_client.protocol.states import ENDED_SHARD_STATES
from fleet import snapshots
from fleet.domain.placement import Placement, place
from fleet.domain.reasons import Refusal
from fleet.domain.states import ReplicaState
from fleet.models import CatalogModel, Gpu, Replica
from fleet.services.errors import FleetError


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyExplanation:
    label: str
    state: ReplicaState
    reason: str  # of the state, in a sentence
    where: tuple[str, ...]  # "gpu-07 GPU 0, 1"
    refusal: Refusal | None = None  # of placement, when nothing of it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExplanation:
    """`another` says where one more copy would go, claims and free memory being as they are now."""

    name: str
    wanted: int
    copies: tuple[CopyExplanation, ...]
    another: Placement | Refusal


def explain(name: str) -> ModelExplanation:
    """Raises FleetError when there is no model of that name or alias that llmgw runs."""
    snapshot = snapshots.load()
    found = CatalogModel.objects.filter(served_names__name=name).first()
    model = next((each for each in snapshot.models if found and each.pk == found.pk), None)
    if model is None:
        raise FleetError("no_model", f"cannot explain {name}: no such model in the catalog", _known(name))
    if model.profile is None:
        text = f"the profile of {model.name} can't be used: {model.profile_error}"
        another: Placement | Refusal = Refusal(code="invalid_profile", text=text)
    else:
        another = place(snapshot, model.profile)
    refusal = another if isinstance(another, Refusal) else None
    rows = Replica.objects.filter(model=model.pk).prefetch_related("shards__node", "shards__claims__gpu")
    copies = tuple(_copy(row, refusal) for row in rows.order_by("number"))
    return ModelExplanation(name=model.name, wanted=model.replicas, copies=copies, another=another)


def _copy(replica: Replica, refusal: Refusal | None) -> CopyExplanation:
    live = [shard for shard in replica.shards.all() if shard.state not in ENDED_SHARD_STATES]
    where = []
    for shard in sorted(live, key=lambda each: (each.epoch, each.rank)):
        held = [claim.gpu for claim in shard.claims.all() if claim.released_at is None]
        cards = [gpu.uuid if gpu.index is None else str(gpu.index) for gpu in sorted(held, key=_by_index)]
        where.append(shard.node.name + (f" GPU {', '.join(cards)}" if cards else ""))
    return CopyExplanation(
        label=replica.label,
        state=ReplicaState(replica.state),
        reason=replica.reason,
        where=tuple(where),
        refusal=None if where else refusal,
    )


def _by_index(gpu: Gpu) -> tuple[int, str]:
    return (-1 if gpu.index is None else gpu.index, gpu.uuid)


def _known(name: str) -> str:
    names = list(
        CatalogModel.objects.filter(profile__isnull=False).order_by("name").values_list("name", flat=True)[:20]
    )
    return f"the catalog has {', '.join(names)}" if names else "the catalog is empty: manage.py catalog apply FILE"
