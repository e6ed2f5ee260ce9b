"""The search for one node: kinds of nodes by what they would lose, the first node of the best kind that passes."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from agent_client.profile import Arrangement, Profile
from agent_client.profile.model_facts import ModelFacts
from agent_client.protocol.states import ENDED_SHARD_STATES
from fleet.domain.fit import Shape, Take, shape_of
from fleet.domain.placement_filters import Need, binding, engine, labels, neighbours
from fleet.domain.placement_index import FleetIndex, Kind, Slot, slot_of
from fleet.domain.placement_scale import Scale, Score
from fleet.domain.types import GpuView, NodeView, ReplicaView

#: Up to so many nodes each is judged by itself; more are searched by kind.
FEW = 64

Key = tuple[Score, bool, tuple[bool, str]]  # score, has not the model's files, order among equals


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One question to an index, with what follows from it worked out once."""

    index: FleetIndex
    profile: Profile
    model: int | None
    avoid: Collection[int]
    facts: ModelFacts | None = None  # of the model, where they are known
    instead_of: ReplicaView | None = None  # the copy that ends when this one serves

    @cached_property
    def shape(self) -> Shape:
        return shape_of(self.profile)

    @cached_property
    def need(self) -> Need:
        return Need.of(self.profile, self.facts)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """In order of preference. Who names none takes first what fewest others depend on."""
        rivals = self.index.rivals
        return self.profile.gpu_class or tuple(
            sorted(self.index.cells, key=lambda each: (*rivals.get(each, (0, 0)), each))
        )

    @cached_property
    def own(self) -> str | None:
        return self.index.names.get(self.model) if self.model is not None else None

    @cached_property
    def files(self) -> Collection[int]:
        return self.index.holds.get(self.model, ()) if self.model is not None else ()

    @cached_property
    def allowed(self) -> Collection[int] | None:
        """Nodes that selector and affinity leave; None: all."""
        index, profile = self.index, self.profile
        sets: list[Collection[int]] = [index.labels.get(label, frozenset()) for label in profile.node_selector.items()]
        sets += [index.runs.get(name, {}) for name in binding(profile, index.runs, self.own)]
        return min(sets, key=len) if sets else None

    @cached_property
    def copies(self) -> Mapping[int, int]:
        """Where other copies of the model run that stay, if that matters."""
        if self.own is None or self.profile.arrangement is not Arrangement.SPREAD:
            return {}
        leave = Counter(self.index.leave.get(self.own, {}))
        if self.instead_of is not None:
            leave.update(shard.node for shard in self.instead_of.shards if shard.state not in ENDED_SHARD_STATES)
        stay = {node: count - leave[node] for node, count in self.index.runs.get(self.own, {}).items()}
        return {node: count for node, count in stay.items() if count > 0}

    def tier(self, node: int) -> int:
        return self.copies.get(node, 0)

    def passes(self, node: NodeView) -> bool:
        """The rules about a node that its kind does not tell."""
        profile = self.profile
        return not (
            engine(node, profile)
            or (profile.node_selector and labels(node, profile))
            or ((profile.affinity or profile.anti_affinity) and neighbours(node, profile, self.index.runs, self.own))
        )

    def fitting(self, slot: Slot) -> Slot | None:
        """The slot with those cards alone that meet the need; the same one when all do, None when too few do."""
        cards, unmet = slot.cards, self.need.unmet
        spare = len(cards) - self.shape.cards
        good = []
        for gpu in cards:
            if unmet(gpu) is None:
                good.append(gpu)
            elif (spare := spare - 1) < 0:
                return None
        if len(good) == len(cards):
            return slot
        return slot_of(slot.node, slot.gpu_class, good, self.index.racks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    key: Key
    slot: Slot
    take: Take

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        """Cards of one group stand together."""
        out: list[GpuView] = []
        for domain, count in zip(self.slot.domains, self.take.domains, strict=True):
            out += domain[:count]
        return (*out, *self.slot.unknown[: self.take.unknown])


def one_node(ask: Ask) -> tuple[str, Choice] | None:
    """Class and cards on the best node: not to be avoided, then the preferred class, spread, then score."""
    for avoided in (False, True):
        if avoided and not ask.avoid:
            return None
        for gpu_class in ask.classes:
            found = _in_class(ask, gpu_class, avoided)
            if found is not None:
                return gpu_class, found
    return None


def _in_class(ask: Ask, gpu_class: str, avoided: bool) -> Choice | None:
    if gpu_class not in ask.index.cells:
        return None
    scale = Scale(ask.index, gpu_class, ask.shape)
    if avoided:
        named: Collection[int] = ask.avoid
    elif ask.allowed is not None and len(ask.allowed) <= FEW:
        named = [pk for pk in ask.allowed if pk not in ask.avoid]
    else:
        best = _scan(ask, scale)
        if best is not None:
            return best
        named = [pk for pk in ask.copies if pk not in ask.avoid]
    return _of_named(ask, scale, named)


def _of_named(ask: Ask, scale: Scale, nodes: Collection[int]) -> Choice | None:
    found = [(ask.tier(pk), choice) for pk in nodes if (choice := judge(ask, scale, pk)) is not None]
    return min(found, key=lambda each: (each[0], each[1].key))[1] if found else None


def judge(ask: Ask, scale: Scale, node: int) -> Choice | None:
    """One node by itself."""
    slot = ask.index.slots.get(node, {}).get(scale.gpu_class)
    if slot is None or not ask.passes(slot.node):
        return None
    fitting = ask.fitting(slot)
    found = scale.take(fitting.kind) if fitting is not None else None
    if fitting is None or found is None:
        return None
    score = scale.score(fitting.kind, found)
    if fitting is not slot:  # cards that do not meet the need are free all the same: no cheaper than its kind
        whole = scale.take(slot.kind)
        score = max(score, scale.score(slot.kind, whole)) if whole is not None else score
    key = (score, node not in ask.files, slot.order)
    return Choice(key=key, slot=fitting, take=found)


def _scan(ask: Ask, scale: Scale) -> Choice | None:
    """Best-first over the kinds, without nodes to avoid and those with a copy already."""
    skipped = {*ask.avoid, *ask.copies}
    best: Choice | None = None
    for pk in _holders(ask, scale, {kind: score for score, kind in scale.ranked}):
        if pk not in skipped and (best := judge(ask, scale, pk)) is not None:
            break
    for score, kind in scale.ranked:
        if best is not None and best.key[0] < score:
            break
        for slot in scale.index.cells[scale.gpu_class][kind]:
            if slot.node.pk in skipped or (ask.allowed is not None and slot.node.pk not in ask.allowed):
                continue
            if best is not None and best.key <= (score, True, slot.order):
                break
            choice = judge(ask, scale, slot.node.pk)
            best = _better(best, choice)
            if choice is not None and choice.key[0] == score:
                break
    return best


def _holders(ask: Ask, scale: Scale, scores: Mapping[Kind, Score]) -> list[int]:
    """Nodes with the model's files, in the order in which they would be taken."""
    slots = (ask.index.slots.get(pk, {}).get(scale.gpu_class) for pk in ask.files)
    found = [(scores[slot.kind], slot.order, slot.node.pk) for slot in slots if slot and slot.kind in scores]
    return [pk for _, _, pk in sorted(found)]


def _better(one: Choice | None, other: Choice | None) -> Choice | None:
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda each: each.key)
