"""`place(snapshot, profile) → Placement | Refusal`: pure and deterministic, whatever the order of rows.

Filters, then scores (fleet.domain.score): the place that breaks the fewest holes wins. A tick that places much asks one
FleetIndex and goes on with `index.taking(placement)`; a snapshot is indexed anew for each question.
"""

from collections.abc import Collection
from dataclasses import replace
from functools import cache

from agent_client.profile import Profile
from agent_client.profile.model_facts import ModelFacts
from fleet.domain.placement_find import find_for
from fleet.domain.placement_index import FleetIndex
from fleet.domain.placement_preempt import preempt
from fleet.domain.placement_refusal import refuse
from fleet.domain.placement_search import Ask
from fleet.domain.placement_types import Placement, Setting, ShardPlacement
from fleet.domain.reasons import Proposal, Refusal
from fleet.domain.types import FleetSnapshot, ReplicaView
from fleet.domain.whatif import propose

__all__ = ["FleetIndex", "Placement", "Setting", "ShardPlacement", "place"]


def place(
    fleet: FleetSnapshot | FleetIndex,
    profile: Profile,
    *,
    model: int | None = None,
    avoid: Collection[int] = (),
    taken: Collection[int] = (),
    facts: ModelFacts | None = None,
    instead_of: ReplicaView | None = None,
) -> Placement | Refusal:
    """Where one replica can run.

    `model`: whose replica it is, for its files, its own copies and its affinities; `avoid`: nodes used only when no
    other fits; `taken`: GPUs promised in this tick; `facts`: of the model, for the memory that
    it can't do without and for what would help; `instead_of`: the copy that it is to
    take over from, which counts as one that is gone where copies are spread.
    """
    index = fleet if isinstance(fleet, FleetIndex) else FleetIndex.build(fleet)
    ask = Ask(index=index.without(taken), profile=profile, model=model, avoid=avoid, facts=facts, instead_of=instead_of)
    # In a tick cards are only taken: what found no place finds none later, unless a neighbour that it needs arrives.
    key = (id(profile), model, frozenset(avoid), frozenset(taken), id(facts))
    known = index.refusals.get(key) if not profile.affinity else None
    if known is not None:
        return known[1]
    found = find_for(ask)
    if found is None and profile.preempts:
        found = preempt(ask)
    if found is not None:
        return found
    refusal = _refused(ask, facts)
    index.refusals[key] = ((profile, facts), refusal)  # with what the key names, so that no other takes its id
    return refusal


def _refused(ask: Ask, facts: ModelFacts | None) -> Refusal:
    @cache
    def proposals() -> tuple[Proposal, ...]:
        return propose(ask, facts)

    return replace(refuse(ask), propose=proposals)
