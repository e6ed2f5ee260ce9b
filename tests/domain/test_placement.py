"""Placement: what fits where, and how a refusal reads."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.placement import FleetIndex, Placement, place
from fleet.domain.reasons import FOLDED, HINTS, Reason, Refusal
from fleet.domain.states import NodeStatus, ReplicaState
from fleet.domain.types import FleetSnapshot, ModelView
from tests.domain.pictures import fleet, profile


def check_placed(picture: str, on: str, cards: Sequence[int], **fields: object) -> None:
    snapshot = fleet(picture)
    found = place(snapshot, profile(**fields))
    assert isinstance(found, Placement), found
    node = next(node for node in snapshot.nodes if node.pk == found.head.node)
    assert (node.name, [gpu.index for gpu in node.gpus if gpu.pk in found.gpus]) == (on, list(cards))


def check_refused(picture: str, text: str, **fields: object) -> None:
    found = place(fleet(picture), profile(**fields))
    assert isinstance(found, Refusal), found
    assert found.text == text
    assert found.hint


def test_one_card_goes_into_the_smallest_hole() -> None:
    check_placed("a: ....\nb: xxx.", "b", [3])


def test_a_pair_stays_inside_one_nvlink_domain() -> None:
    check_placed("a: x.-..", "a", [2, 3], tensor_parallel=2)


def test_a_broken_pair_is_no_pair() -> None:
    text = "0 of 1 node fit: a has 1 free h100-sxm-80gb in one NVLink domain, 2 needed"
    check_refused("a: x.-.x", text, tensor_parallel=2)


def test_crossing_domains_must_be_wished() -> None:
    check_placed("a: x.-.x", "a", [1, 2], tensor_parallel=2, nvlink="off")


def test_unknown_topology_takes_a_pair_only_when_preferred() -> None:
    check_placed("a: ?..", "a", [0, 1], tensor_parallel=2, nvlink="prefer")
    check_refused(
        "a: ?..", "0 of 1 node fit: a has 1 free h100-sxm-80gb in one NVLink domain, 2 needed", tensor_parallel=2
    )


def test_whole_domains_are_kept_for_groups() -> None:
    check_placed("a: ....-x...", "a", [5])


def test_the_first_class_of_the_list_wins() -> None:
    classes = ["h100-sxm-80gb", "a100-sxm-80gb"]
    check_placed("a a100-sxm-80gb: .\nb h100-sxm-80gb: ....", "b", [0], gpu_class=classes)


def test_who_names_no_class_takes_the_one_that_fewest_others_depend_on() -> None:
    a100, h100 = "a100-sxm-80gb", "h100-sxm-80gb"
    picture = fleet(f"a {a100}: ....\nb {h100}: ....")
    for wishes, on in (
        ([[a100]], "b"),
        ([[h100]], "a"),
        ([[h100, a100], [a100]], "b"),
        ([[h100], [a100, h100], [a100, h100], [h100, a100]], "a"),
        ([], "a"),
    ):
        models = tuple(
            ModelView(pk=pk, name=f"m{pk}", replicas=1, revision=1, profile=profile(gpu_class=classes))
            for pk, classes in enumerate(wishes)
        )
        found = place(replace(picture, models=models), profile())
        assert isinstance(found, Placement)
        assert found.head.node_name == on, wishes


def test_cards_that_others_use_are_named() -> None:
    text = (
        "0 of 1 node fit: a has 0 free h100-sxm-80gb, 1 needed (GPU 0 is held by other/1; "
        "GPU 1 is used by python (pid 77), 70000 MiB; GPU 2 is cordoned; GPU 3 fell off the bus)"
    )
    check_refused("a: xfc!", text)


def test_memory_that_is_used_counts() -> None:
    text = "0 of 1 node fit: a has 0 free h100-sxm-80gb, 1 needed (GPU 0 has 11920 MiB free, 40000 needed)"
    check_refused("a: m", text, memory_mib_per_gpu=40_000)


def test_a_lost_node_is_named_with_its_silence() -> None:
    check_refused("gpu-01 lost: .", "0 of 1 node fit: gpu-01 is lost (silent for 310 s)")


def test_many_nodes_fold_to_counts() -> None:
    picture = "a cordoned: .\nb cordoned: .\nc lost: .\nd: x\ne: x"
    text = "0 of 5 nodes fit: 2 cordoned, 2 have 0 free h100-sxm-80gb, 1 needed, 1 lost"
    check_refused(picture, text)


def test_labels_and_engines_are_asked_for() -> None:
    check_refused("a rack=r1: .", "0 of 1 node fit: a has rack=r1, rack=r2 needed", node_selector={"rack": "r2"})
    check_refused("a engine=echo: .", "0 of 1 node fit: a cannot run vllm (its engines: echo)")


def test_another_class_is_named() -> None:
    text = "0 of 1 node fit: a has t4-16gb, h100-sxm-80gb needed"
    check_refused("a t4-16gb: .", text, gpu_class="h100-sxm-80gb")


def test_an_empty_fleet_says_how_to_join() -> None:
    found = place(FleetSnapshot(), profile())
    assert isinstance(found, Refusal)
    assert found.code == "no_nodes"
    assert "agent_client" in found.hint


def test_a_cpu_replica_needs_no_cards() -> None:
    check_placed("a:\nb lost:", "a", [], gpus=0)


def test_a_node_to_avoid_is_used_only_when_no_other_fits() -> None:
    snapshot = fleet("a: .\nb: .")
    assert place(snapshot, profile(), avoid={1}).head.node == 2  # type: ignore[union-attr]
    assert place(fleet("a: .\nb: x"), profile(), avoid={1}).head.node == 1  # type: ignore[union-attr]


#: Picture, what is asked, and where it goes: cards of each rank by node, in rank order; or the refusal's text.
GROUP = {"tensor_parallel": 8, "pipeline_parallel": 2, "nodes": 2}
TABLE = {
    "two pairs of which one is free": ("a: x.-..", {"tensor_parallel": 2}, "a 2 3"),
    "two pairs, both broken": (
        "a: x.-.x",
        {"tensor_parallel": 2},
        "0 of 1 node fit: a has 1 free h100-sxm-80gb in one NVLink domain, 2 needed",
    ),
    "a pipeline over two pairs": ("a: ..-..", {"tensor_parallel": 2, "pipeline_parallel": 2}, "a 0 1 2 3"),
    "a pipeline stays in one domain where it costs no more": (
        "a: ....-....",
        {"tensor_parallel": 2, "pipeline_parallel": 2},
        "a 0 1 2 3",
    ),
    "pairs are taken, single cards left": (
        "a: ...-...",
        {"tensor_parallel": 2, "pipeline_parallel": 2},
        "a 0 1 3 4",
    ),
    "data parallel copies need no NVLink": ("a: .-.-.-.", {"data_parallel": 4}, "a 0 1 2 3"),
    "cards without sizes are one group": (
        "a: .-.",
        {"gpus": 2},
        "0 of 1 node fit: a has 1 free h100-sxm-80gb in one NVLink domain, 2 needed",
    ),
    "one card into the smallest hole of all nodes": ("a: ........\nb: xxxxxxx.", {}, "b 7"),
    "a hole of three is broken before one of four": ("a: ....\nb: ...", {}, "b 0"),
    "a whole domain for a whole group": ("a: .....\nb: ....", {"tensor_parallel": 4}, "b 0 1 2 3"),
    "off crosses domains": ("a: x.-.x", {"tensor_parallel": 2, "nvlink": "off"}, "a 1 2"),
    "off takes the scraps first": ("a: ....-x.-.x", {"tensor_parallel": 2, "nvlink": "off"}, "a 5 6"),
    "prefer takes a known pair first": ("a: ?..\nb: ..", {"tensor_parallel": 2, "nvlink": "prefer"}, "b 0 1"),
    "prefer is for pairs alone": (
        "a: ?....",
        {"tensor_parallel": 4, "nvlink": "prefer"},
        "0 of 1 node fit: a has 1 free h100-sxm-80gb in one NVLink domain, 4 needed",
    ),
    "a MIG slice for one card": ("a: s", {}, "a 0"),
    "MIG slices make no group": (
        "a: ss",
        {"tensor_parallel": 2, "nvlink": "off"},
        "0 of 1 node fit: a has 0 free h100-sxm-80gb-mig-1g.10gb, 2 needed "
        "(GPU 0 is a MIG slice, which joins no group; GPU 1 is a MIG slice, which joins no group)",
    ),
    "a class of slices by name": ("a: s.", {"gpu_class": "h100-sxm-80gb-mig-1g.10gb"}, "a 0"),
    "a cordoned card is passed by": ("a: c...", {"tensor_parallel": 2}, "a 1 2"),
    "a cordoned card too many": (
        "a: .......c",
        {"tensor_parallel": 8},
        "0 of 1 node fit: a has 7 free h100-sxm-80gb, 8 needed (GPU 7 is cordoned)",
    ),
    "a foreign process": (
        "a: f",
        {},
        "0 of 1 node fit: a has 0 free h100-sxm-80gb, 1 needed (GPU 0 is used by python (pid 77), 70000 MiB)",
    ),
    "memory that others hold, against the share that the engine takes": (
        "a: m\nb: x",
        {"gpu_memory_utilization": 0.5},
        "0 of 2 nodes fit: a has 0 free h100-sxm-80gb, 1 needed (GPU 0 has 11920 MiB free, 40960 needed); "
        "b has 0 free h100-sxm-80gb, 1 needed (GPU 0 is held by other/1)",
    ),
    "a small engine beside a large one": ("a: m", {"memory_mib_per_gpu": 8_000}, "a 0"),
    "mixed classes by preference": (
        "a a100-sxm-80gb: .\nb l40s-48gb: .",
        {"gpu_class": ["l40s-48gb", "a100-sxm-80gb"]},
        "b 0",
    ),
    "the second class where the first is full": (
        "a a100-sxm-80gb: .\nb l40s-48gb: x",
        {"gpu_class": ["l40s-48gb", "a100-sxm-80gb"]},
        "a 0",
    ),
    "no group of two classes": (
        "a ib=e: ........\nb a100-sxm-80gb ib=e: ........",
        GROUP,
        "2 of 2 nodes fit, 2 on one network needed: a has room, but 1 node on e has, 2 needed; "
        "b has room, but 1 node on e has, 2 needed",
    ),
    "an old card for a new kernel": (
        "a cc=8.0: .",
        {"min_compute_capability": "8.9"},
        "0 of 1 node fit: a has 0 free h100-sxm-80gb, 1 needed (GPU 0 has compute capability 8.0, 8.9 needed)",
    ),
    "10.0 is newer than 9.0": ("a cc=9.0: .\nb cc=10.0: .", {"min_compute_capability": "10.0"}, "b 0"),
    "a drained node gets nothing new": ("a draining: .", {}, "0 of 1 node fit: a is being drained"),
    "a label": ("a rack=r1: .\nb rack=r2: .", {"node_selector": {"rack": "r2"}}, "b 0"),
    "two labels": ("a rack=r2 site=x: .\nb rack=r2 site=y: .", {"node_selector": {"rack": "r2", "site": "y"}}, "b 0"),
    "not beside": ("a: A.\nb: .....", {"anti_affinity": ["a"]}, "b 0"),
    "not beside, and nowhere else": (
        "a: A.",
        {"anti_affinity": ["a"]},
        "0 of 1 node fit: a runs a, which anti_affinity names",
    ),
    "beside": ("a: .\nb: A.......", {"affinity": ["a"]}, "b 1"),
    "beside someone who runs nowhere": (
        "a: .",
        {"affinity": ["ghost"]},
        "0 of 1 node fit: a does not run ghost, which affinity names",
    ),
    "where the files are": ("a: ..\nb files: ..", {}, "b 0"),
    "a group of 16 on one of two fabrics": (
        "a ib=east: ........\nb ib=west: ........\nc ib=east: x.......\nd ib=west: ........",
        GROUP,
        "b 0 1 2 3 4 5 6 7 | d 0 1 2 3 4 5 6 7",
    ),
    "the tighter fabric": (
        "a ib=e: ........\nb ib=e: ........\nc ib=e: ........\nd ib=w: ........\ne ib=w: ........",
        GROUP,
        "d 0 1 2 3 4 5 6 7 | e 0 1 2 3 4 5 6 7",
    ),
    "a fabric whose only active port is down": (
        "a ib=east: ........\nb ib=east!: ........",
        GROUP,
        "2 of 2 nodes fit, 2 on one network needed: a has room, but 1 node on east has, 2 needed; "
        "b has no active port on a fabric (mlx5_0/1 on east: the port is down)",
    ),
    "nodes without adapters are islands": (
        "a: ........\nb: ........",
        GROUP,
        "2 of 2 nodes fit, 2 on one network needed: "
        "a has no adapter: it can host no part of a multi-node replica; "
        "b has no adapter: it can host no part of a multi-node replica",
    ),
    "tensor parallel over nodes is not for NVLink islands": (
        "a ib=e: ........\nb ib=e: ........",
        {"tensor_parallel": 16, "nodes": 2},
        "2 of 2 nodes fit, 2 on one network needed: "
        "a is in no NVLink rack: tensor_parallel 16 over nodes needs one, or nvlink: off; "
        "b is in no NVLink rack: tensor_parallel 16 over nodes needs one, or nvlink: off",
    ),
    "off lets it cross a fabric": (
        "a ib=e: ........\nb ib=e: ........",
        {"tensor_parallel": 16, "nodes": 2, "nvlink": "off"},
        "a 0 1 2 3 4 5 6 7 | b 0 1 2 3 4 5 6 7",
    ),
    "a rack is one domain over its nodes": (
        "a nvl=r1: ....\nb nvl=r2: ....\nc nvl=r2: ....",
        {"tensor_parallel": 8, "nodes": 2},
        "b 0 1 2 3 | c 0 1 2 3",
    ),
    "blocks of a rack on one fabric": (
        "a ib=e nvl=r1: ....\nb ib=e nvl=r2: ....\nc ib=e nvl=r1: ....\nd ib=e nvl=r2: ....",
        {"tensor_parallel": 8, "pipeline_parallel": 2, "nodes": 4},
        "a 0 1 2 3 | c 0 1 2 3 | b 0 1 2 3 | d 0 1 2 3",
    ),
    "small ones leave the fabric's nodes alone": ("a ib=e: ........\nb: ........", {}, "b 0"),
}


def drawn(snapshot: FleetSnapshot, found: Placement) -> str:
    index = {gpu.pk: gpu.index for node in snapshot.nodes for gpu in node.gpus}
    return " | ".join(" ".join([s.node_name, *(str(index[gpu]) for gpu in s.gpus)]) for s in found.shards)


@pytest.mark.parametrize("case", TABLE)
def test_where_it_goes(case: str) -> None:
    picture, fields, expected = TABLE[case]
    snapshot = fleet(picture)
    found = place(snapshot, profile(**fields), model=1)
    assert (drawn(snapshot, found) if isinstance(found, Placement) else found.text) == expected
    if isinstance(found, Refusal):
        assert found.hint


def test_copies_spread_over_nodes_when_they_should() -> None:
    for arrangement, node in (("spread", "b"), ("pack", "a")):
        found = place(fleet("a: A...\nb: ........"), profile(arrangement=arrangement), model=2)
        assert isinstance(found, Placement)
        assert found.node_names == (node,)


def test_a_tick_goes_on_with_what_is_left() -> None:
    index = FleetIndex.build(fleet("a: ..-..\nb: .."))
    seen: list[int] = []
    for _ in range(3):
        found = place(index, profile(tensor_parallel=2))
        assert isinstance(found, Placement)
        seen += found.gpus
        index = index.taking(found)
    assert sorted(seen) == [1, 2, 3, 4, 5, 6]
    assert isinstance(place(index, profile()), Refusal)


def test_each_rank_is_told_of_its_own_adapters() -> None:
    found = place(
        fleet("a ib=e,w: ........\nb ib=w!,e: ........"), profile(**GROUP, env={"NCCL_SOCKET_IFNAME": "eth0"})
    )
    assert isinstance(found, Placement)
    assert (found.fabric, found.head_address) == ("e", "10.0.0.1")
    assert [dict(shard.fabric_env) for shard in found.shards] == [
        {"NCCL_IB_HCA": "=mlx5_0:1", "GLOO_SOCKET_IFNAME": "ib0", "VLLM_HOST_IP": "10.0.0.1"},
        {"NCCL_IB_HCA": "=mlx5_1:1", "GLOO_SOCKET_IFNAME": "ib1", "VLLM_HOST_IP": "10.0.0.2"},
    ]


def test_the_holder_is_told_with_its_state() -> None:
    text = "0 of 1 node fit: a has 0 free h100-sxm-80gb, 1 needed (GPU 0 is held by failed replica a/1)"
    found = place(fleet("a: A", state=ReplicaState.FAILED), profile())
    assert isinstance(found, Refusal)
    assert found.text == text
    assert found.nodes[0].held_by == ("a/1",)


def test_lower_priority_makes_room_only_for_those_that_preempt() -> None:
    snapshot = fleet("a: AB\nb: CC", priority=1)
    assert isinstance(place(snapshot, profile(priority=2)), Refusal)
    assert isinstance(place(snapshot, profile(priority=1, preempts=True)), Refusal)
    found = place(snapshot, profile(priority=2, preempts=True))
    assert isinstance(found, Placement)
    assert (found.preempts, found.gpus) == ((2,), (1,))
    both = place(fleet("a: AB", priority=1), profile(priority=2, preempts=True, tensor_parallel=2))
    assert isinstance(both, Placement)
    assert both.preempts == (2, 3)


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_has_words_and_a_hint(reason: Reason) -> None:
    assert FOLDED[reason]
    assert HINTS[reason]


SIGNS = st.text(alphabet=".xfc!m-", min_size=1, max_size=9)
LINES = st.lists(st.tuples(st.sampled_from(["", "cordoned", "lost", "unreachable"]), SIGNS), min_size=1, max_size=6)


@given(LINES, st.sampled_from([1, 2, 4]), st.randoms(use_true_random=False))
def test_only_free_cards_of_schedulable_nodes_whatever_the_order(
    lines: list[tuple[str, str]], size: int, rng: random.Random
) -> None:
    snapshot = fleet("\n".join(f"n{i} {flag}: {signs}" for i, (flag, signs) in enumerate(lines)))
    found = place(snapshot, profile(tensor_parallel=size))
    nodes = list(snapshot.nodes)
    rng.shuffle(nodes)
    assert place(FleetSnapshot(nodes=tuple(nodes)), profile(tensor_parallel=size)) == found
    if isinstance(found, Placement):
        node = next(node for node in snapshot.nodes if node.pk == found.head.node)
        chosen = [gpu for gpu in node.gpus if gpu.pk in found.gpus]
        assert node.status is NodeStatus.READY
        assert node.schedulable
        assert len(chosen) == size
        assert all(gpu.usable and gpu.schedulable and not gpu.holder and not gpu.foreign for gpu in chosen)
        assert len({gpu.domain for gpu in chosen}) == 1


WISHES = st.lists(
    st.sampled_from(
        [
            {},
            {"tensor_parallel": 2},
            {"tensor_parallel": 4, "nvlink": "off"},
            {"tensor_parallel": 2, "pipeline_parallel": 2},
            {"tensor_parallel": 2, "pipeline_parallel": 2, "nodes": 2},
            {"gpus": 0},
        ]
    ),
    max_size=8,
)
NAMED = st.sampled_from(["", "ib=e", "ib=e", "ib=w", "cordoned ib=e", "draining", "lost", "nvl=r1"])


@given(st.lists(st.tuples(NAMED, SIGNS), min_size=1, max_size=6), WISHES, st.randoms(use_true_random=False))
def test_a_tick_never_gives_a_card_twice_and_does_not_depend_on_the_order_of_rows(
    lines: list[tuple[str, str]], wishes: list[dict[str, object]], rng: random.Random
) -> None:
    snapshot = fleet("\n".join(f"n{i} {words}: {signs}" for i, (words, signs) in enumerate(lines)))
    shuffled = list(snapshot.nodes)
    rng.shuffle(shuffled)
    index, other = FleetIndex.build(snapshot), FleetIndex.build(FleetSnapshot(nodes=tuple(shuffled)))
    given_away: set[int] = set()
    nodes = {node.pk: node for node in snapshot.nodes}
    for wish in wishes:
        asked = profile(**wish)
        found = place(index, asked)
        assert place(other, asked) == found
        assert place(snapshot, asked, taken=given_away).__class__ is found.__class__
        if isinstance(found, Refusal):
            continue
        index, other = index.taking(found), other.taking(found)
        assert not given_away & set(found.gpus)
        given_away |= set(found.gpus)
        assert len(found.shards) == asked.nodes == len({shard.node for shard in found.shards})
        for shard in found.shards:
            free = {gpu.pk: gpu for gpu in nodes[shard.node].gpus if gpu.free}
            assert nodes[shard.node].standing
            assert len(shard.gpus) == asked.gpus_per_node
            assert set(shard.gpus) <= free.keys()
            if asked.nvlink == "require" and asked.group > 1:
                pairs = [shard.gpus[at : at + asked.group] for at in range(0, len(shard.gpus), asked.group)]
                assert all(len({free[gpu].domain for gpu in pair}) == 1 for pair in pairs)
    assert not any(gpu.pk in given_away and (gpu.holder or gpu.foreign) for node in nodes.values() for gpu in node.gpus)


def test_in_a_tick_the_same_question_is_refused_once() -> None:
    index = FleetIndex.build(fleet("a: ..x"))
    large, small = profile(tensor_parallel=4), profile()
    first = place(index, large)
    found = place(index, small)
    assert isinstance(first, Refusal)
    assert isinstance(found, Placement)
    assert place(index.taking(found), large) is first
    assert place(index.changing([fleet("a: ....").nodes[0]]), large) != first


def test_a_neighbour_that_arrives_in_the_same_tick_counts() -> None:
    index = FleetIndex.build(fleet("a: ...\nb: B"))
    beside = profile(affinity=["b"])
    assert isinstance(place(index, beside), Refusal)
    another = place(index, profile(), model=3)
    assert isinstance(another, Placement)
    found = place(index.taking(another, model=3), beside)
    assert isinstance(found, Placement)
    assert found.node_names == ("a",)
