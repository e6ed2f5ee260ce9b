"""What would make it fit: the smallest change, and only what placement confirms."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_client.profile import Profile
from agent_client.profile.model_facts import ModelFacts
from fleet.domain.placement import FleetIndex, Placement, place
from fleet.domain.placement_find import find_for
from fleet.domain.placement_search import Ask
from fleet.domain.reasons import ChangeKind, Refusal
from fleet.domain.states import ReplicaState
from fleet.domain.types import FleetSnapshot
from fleet.domain.whatif import ORDER, propose
from fleet.domain.whatif_changes import applied
from tests.domain.pictures import fleet, profile
from tests.support.examples import examples

#: Picture, what is asked, and the proposals' changes.
TABLE: dict[str, tuple[str, dict[str, object], list[str]]] = {
    "a cordoned node": ("a cordoned: .", {}, ["uncordon a"]),
    "a node that was cordoned for its drain": ("a cordoned draining: .", {}, ["uncordon a, which ends its drain"]),
    "a draining node": ("a draining: .", {}, ["cancel the drain of a"]),
    "a silent node": ("a lost: .", {}, ["bring a back: it is lost"]),
    "only the cards that it takes": ("a: cc", {}, ["uncordon a GPU 0"]),
    "a named process": ("a: f", {}, ["end python (pid 77) that holds 70000 MiB on a GPU 0"]),
    "someone who can move": ("a: A...\nb: x.", {"tensor_parallel": 4}, ["drain a/1, which fits on b"]),
    "someone who can't": ("a: A...", {"tensor_parallel": 4}, ["stop a/1 (frees a GPU 0)"]),
    "the lesser evil first": (
        "a: A\nb cordoned: .\nc lost: .",
        {},
        ["uncordon b", "bring c back: it is lost", "stop a/1 (frees a GPU 0)"],
    ),
    "two at once where one is not enough": ("a cordoned: c", {}, ["uncordon a and uncordon a GPU 0"]),
    "two who leave together": (
        "a: AB",
        {"tensor_parallel": 2},
        ["stop a/1 (frees a GPU 0) and stop b/1 (frees a GPU 1)"],
    ),
    "unknown topology": ("a: ?..", {"tensor_parallel": 2}, ["set nvlink: prefer"]),
    "two domains": ("a: x.-.x", {"tensor_parallel": 2}, ["set nvlink: off"]),
    "larger cards": (
        "a l40s-48gb: ..x\nb h100-sxm-80gb: .",
        {"tensor_parallel": 4, "gpu_class": "l40s-48gb", "memory_mib_per_gpu": 20_000},
        ["set tensor_parallel: 2 and memory_mib_per_gpu: 40000"],
    ),
    "larger cards of another class": (
        "a l40s-48gb: x\nb h100-sxm-80gb: .",
        {"tensor_parallel": 2, "gpu_class": "l40s-48gb"},
        ["set tensor_parallel: 1 and gpu_class: [h100-sxm-80gb]"],
    ),
    "fewer nodes": (
        "a ib=e: ........",
        {"tensor_parallel": 4, "pipeline_parallel": 2, "nodes": 2},
        ["set nodes: 1"],
    ),
    "a port": (
        "a ib=e: ....\nb ib=e!: ....",
        {"tensor_parallel": 4, "pipeline_parallel": 2, "nodes": 2},
        ["bring up mlx5_0/1 (e) on b"],
    ),
    "less memory": ("a: m", {"memory_mib_per_gpu": 20_000}, ["set memory_mib_per_gpu: 11920"]),
    "a smaller share": ("a: m", {"gpu_memory_utilization": 0.25}, ["set gpu_memory_utilization: 0.14"]),
    "less than most of a model needs": ("a: m", {"memory_mib_per_gpu": 40_000}, []),
    "a share in which no model has room": ("a: m", {}, []),
    "nothing small": ("a: x", {"tensor_parallel": 8}, []),
    "nothing at all": ("a t4-16gb: .", {"node_selector": {"rack": "r9"}}, []),
}


def refused(snapshot: FleetSnapshot, wish: Profile) -> Refusal:
    found = place(snapshot, wish)
    assert isinstance(found, Refusal), found
    return found


@pytest.mark.parametrize("case", TABLE)
def test_what_is_proposed(case: str) -> None:
    picture, fields, expected = TABLE[case]
    found = refused(fleet(picture), profile(**fields)).proposals
    assert [" and ".join(change.text for change in each.changes) for each in found] == expected


def test_a_failed_holder_is_told_to_go() -> None:
    found = refused(fleet("a: A", state=ReplicaState.FAILED), profile()).proposals
    assert [change.kind for each in found for change in each.changes] == [ChangeKind.STOP_REPLICA]
    assert found[0].text == "stop a/1 (frees a GPU 0): it would go to a"


def test_with_the_models_shapes_the_longest_context_is_named() -> None:
    facts = ModelFacts(
        layers=32, full_layers=32, window_layers=0, linear_layers=0, kv_heads=8, head_dim=128, heads=32,
        dtype="bfloat16", weights_bytes=4 * 1024**3, context=131_072,
    )  # fmt: skip
    ask = Ask(
        index=FleetIndex.build(fleet("a: m")),
        profile=profile(memory_mib_per_gpu=40_000, max_model_len=131_072),
        model=None,
        avoid=(),
    )
    (proposal,) = propose(ask, facts)
    values = proposal.changes[0].values
    # 11,920 MiB less weights, activations and graphs, at 2 x 32 x 8 x 128 x 2 bytes a token.
    room = 11_920 * 1024**2 - 4 * 1024**3 - int(1.4 * 1024**3) - int(0.95 * 1024**3)
    assert values["max_model_len"] == room // (2 * 32 * 8 * 128 * 2)
    assert values["memory_mib_per_gpu"] == 11_920


@pytest.mark.parametrize(("free", "proposed"), [(4_600, False), (5_000, True)])
def test_no_share_is_proposed_that_an_engine_takes_for_itself(free: int, proposed: bool) -> None:
    """Twice 0.95 GiB of graphs and 1.4 GiB of activations."""
    snapshot = fleet("a: m")
    (node,) = snapshot.nodes
    card = replace(node.gpus[0], memory_used_mib=81_920 - free)
    wish = profile(gpu_memory_utilization=0.1)
    found = refused(replace(snapshot, nodes=(replace(node, gpus=(card,)),)), wish).proposals
    assert bool(found) is proposed


def test_a_context_that_serves_nobody_is_not_proposed() -> None:
    facts = ModelFacts(
        layers=32, full_layers=32, window_layers=0, linear_layers=0, kv_heads=8, head_dim=128, heads=32,
        dtype="bfloat16", weights_bytes=11_920 * 1024**2 - int(2.35 * 1024**3) - 100 * 1024**2, context=131_072,
    )  # fmt: skip
    wish = profile(memory_mib_per_gpu=40_000, max_model_len=131_072)
    assert propose(Ask(index=FleetIndex.build(fleet("a: m")), profile=wish, model=None, avoid=()), facts) == ()


def test_a_refusal_carries_its_proposals_to_the_database() -> None:
    stored = refused(fleet("a: cc"), profile()).to_json()
    change = {"kind": "uncordon_gpus", "target": "a", "text": "uncordon a GPU 0", "gpus": [0]}
    assert stored["proposals"] == [{"text": "uncordon a GPU 0: it would go to a", "changes": [change], "nodes": ["a"]}]


@pytest.mark.parametrize("kind", ChangeKind)
def test_each_kind_of_change_has_its_place_in_the_order(kind: ChangeKind) -> None:
    assert kind in ORDER


SIGNS = st.text(alphabet=".xfc!mABC-", min_size=1, max_size=9)
WORDS = st.sampled_from(["", "cordoned", "lost", "draining", "ib=e", "ib=e!", "cordoned ib=e"])
WISHES = st.sampled_from(
    [
        {},
        {"tensor_parallel": 2},
        {"tensor_parallel": 4, "memory_mib_per_gpu": 20_000},
        {"tensor_parallel": 2, "nvlink": "off"},
        {"tensor_parallel": 2, "pipeline_parallel": 2, "nodes": 2},
    ]
)


@settings(max_examples=examples(120), deadline=None)
@given(st.lists(st.tuples(WORDS, SIGNS), min_size=1, max_size=4), WISHES, st.randoms(use_true_random=False))
def test_every_proposal_places_whatever_the_order(
    lines: list[tuple[str, str]], wish: dict[str, object], rng: random.Random
) -> None:
    snapshot = fleet("\n".join(f"n{i} {words}: {signs}" for i, (words, signs) in enumerate(lines)))
    found = place(snapshot, profile(**wish))
    if isinstance(found, Placement):
        return
    nodes = list(snapshot.nodes)
    rng.shuffle(nodes)
    assert refused(replace(snapshot, nodes=tuple(nodes)), profile(**wish)).proposals == found.proposals
    for proposal in found.proposals:
        ask = Ask(index=FleetIndex.build(snapshot), profile=profile(**wish), model=None, avoid=())
        for change in proposal.changes:
            ask = applied(ask, change)
        after = find_for(ask)
        assert after is not None
        assert after.node_names == proposal.nodes
