"""The smallest change that would make it fit. Each proposal was tried: placement found a place in the changed fleet.

Single changes come before pairs, and what only people decide before what ends somebody's work. Where nothing small
helps there is no proposal.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations, islice

from agent_client.profile.model_facts import ModelFacts
from fleet.domain.placement_find import find_for
from fleet.domain.placement_index import FleetIndex
from fleet.domain.placement_search import Ask
from fleet.domain.placement_types import Placement
from fleet.domain.reasons import Change, ChangeKind, Proposal
from fleet.domain.types import NodeView
from fleet.domain.whatif_changes import applied, of_cards, of_node, of_replicas
from fleet.domain.whatif_profile import of_profile

#: So many proposals, and so many of one kind.
MOST, MOST_OF_KIND = 5, 2
#: So many changes of one kind are tried on a large fleet, so many pairs, and so many replicas of one node at once.
TRIED, TRIED_PAIRS, TOGETHER = 40, 120, 4

#: The order in which they are shown.
ORDER = (
    ChangeKind.UNCORDON_NODE,
    ChangeKind.UNCORDON_GPUS,
    ChangeKind.CANCEL_DRAIN,
    ChangeKind.DRAIN_REPLICA,
    ChangeKind.END_PROCESSES,
    ChangeKind.RAISE_PORT,
    ChangeKind.SET_PROFILE,
    ChangeKind.RETURN_NODE,
    ChangeKind.STOP_REPLICA,
)


def propose(ask: Ask, facts: ModelFacts | None = None) -> tuple[Proposal, ...]:
    """`facts`: of the model, where they are known; they give the longest context that fits."""
    if not ask.index.nodes:
        return ()
    steps = list(_steps(ask))
    singles = [*_tried(ask, ((change,) for _, change in steps)), *_of_profile(ask, facts)]
    if singles:
        return _shown(singles)
    return _shown(_tried(ask, islice(_together(ask, steps), TRIED_PAIRS)))


def _shown(found: Iterable[Proposal]) -> tuple[Proposal, ...]:
    """The best first, and not all of one kind."""
    ordered = sorted(found, key=lambda each: [(ORDER.index(c.kind), c.text) for c in each.changes])
    out: list[Proposal] = []
    for proposal in ordered:
        kinds = [change.kind for change in proposal.changes]
        alike = sum([change.kind for change in other.changes] == kinds for other in out)
        if alike < MOST_OF_KIND and len(out) < MOST:
            out.append(proposal)
    return tuple(out)


def _steps(ask: Ask) -> Iterator[tuple[frozenset[int], Change]]:
    """Changes to nodes and replicas that might matter, with the nodes that they touch."""
    counts: dict[ChangeKind, int] = {}
    for node in ask.index.nodes.values():
        if _could_serve(ask, node):
            for change in of_node(node):
                counts[change.kind] = counts.get(change.kind, 0) + 1
                if counts[change.kind] <= TRIED and (change.kind is not ChangeKind.RAISE_PORT or ask.shape.nodes > 1):
                    yield frozenset({node.pk}), change
    replicas = (
        (nodes, change)
        for nodes, change in of_replicas(ask)
        if ask.shape.cards and any(_could_serve(ask, ask.index.nodes[pk]) for pk in nodes)
    )
    yield from islice(replicas, TRIED * 4)


def _could_serve(ask: Ask, node: NodeView) -> bool:
    """Its engine, labels and neighbours are right, and it has cards enough of a class, whoever holds them."""
    if not ask.passes(node):
        return False
    counts: dict[str, int] = {}
    for gpu in node.gpus:
        counts[gpu.gpu_class] = counts.get(gpu.gpu_class, 0) + gpu.usable
    wanted = ask.profile.gpu_class or tuple(counts)
    return not ask.shape.cards or any(counts.get(name, 0) >= ask.shape.cards for name in wanted)


def _tried(ask: Ask, candidates: Iterable[tuple[Change, ...]]) -> Iterator[Proposal]:
    for changes in candidates:
        found = find_for(_after(ask, changes))
        if found is not None:
            yield _settled(ask, changes, found)


def _after(ask: Ask, changes: Iterable[Change]) -> Ask:
    for change in changes:
        ask = applied(ask, change)
    return ask


def _settled(ask: Ask, changes: tuple[Change, ...], found: Placement) -> Proposal:
    """No card more than it takes, and nobody stopped who can move."""
    used = set(found.gpus)
    kept: list[Change] = []
    for change in changes:
        if change.gpus:
            node = next(each for each in ask.index.nodes.values() if each.name == change.target)
            needed = [gpu for gpu in node.gpus if gpu.index in change.gpus and gpu.pk in used]
            kept += [of_cards(change.kind, node, needed)] if needed else []
        else:
            kept.append(change)
    again = find_for(_after(ask, kept))
    if again is None:
        kept, again = list(changes), found
    index = _after(ask, kept).index.taking(again, model=ask.model)
    moved = []
    for change in kept:
        settled, index = _moved(change, index)
        moved.append(settled)
    return Proposal(changes=tuple(moved), nodes=again.node_names)


def _moved(change: Change, index: FleetIndex) -> tuple[Change, FleetIndex]:
    """A replica that fits elsewhere is drained, not stopped; the index after that."""
    replica = next((each for each in index.snapshot.replicas if each.label == change.target), None)
    model = next((each for each in index.snapshot.models if replica and each.pk == replica.model), None)
    if change.kind is not ChangeKind.STOP_REPLICA or model is None or model.profile is None:
        return change, index
    found = find_for(Ask(index=index, profile=model.profile, model=model.pk, avoid=()))
    if found is None:
        return change, index
    text = f"drain {change.target}, which fits on {', '.join(found.node_names)}"
    return replace(change, kind=ChangeKind.DRAIN_REPLICA, text=text), index.taking(found, model=model.pk)


def _of_profile(ask: Ask, facts: ModelFacts | None) -> Iterator[Proposal]:
    """One proposal for each set of fields: the first value that fits is the one that changes the least."""
    done: set[frozenset[str]] = set()
    for change in of_profile(ask, facts):
        fields = frozenset(change.values) - {"gpu_class"}
        if fields in done or (change.values.get("nvlink") == "off" and frozenset({"nvlink"}) in done):
            continue
        for proposal in _tried(ask, [(change,)]):
            done.add(fields)
            yield proposal


def _together(ask: Ask, steps: list[tuple[frozenset[int], Change]]) -> Iterator[tuple[Change, ...]]:
    """Pairs that touch one node, where one node has to serve; then several replicas of a node; else all pairs."""
    if ask.shape.nodes > 1:
        yield from ((one, other) for (_, one), (_, other) in combinations(steps, 2))
        return
    by_node: dict[int, list[Change]] = {}
    for nodes, change in steps:
        for pk in nodes:
            by_node.setdefault(pk, []).append(change)
    for size in range(2, TOGETHER + 1):
        for pk in sorted(by_node, key=lambda each: ask.index.nodes[each].name):
            changes = by_node[pk]
            if size > 2:
                changes = [each for each in changes if each.kind is ChangeKind.STOP_REPLICA]
            yield from combinations(changes, size)
