"""Placement: what fits where, and how a refusal reads."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_client.profile import Profile, parse_profile
from fleet.domain.placement import Placement, place
from fleet.domain.reasons import FOLDED, HINTS, Reason, Refusal
from fleet.domain.states import NodeStatus
from fleet.domain.types import FleetSnapshot, GpuView, NodeView


def fleet(picture: str) -> FleetSnapshot:
    """One node a line: `name [status] [cordoned] [engine=x] class: cards`, a group of letters per NVLink domain.

    `.` free, `x` held, `f` foreign use, `c` cordoned, `!` broken, `m` memory used; `-` parts domains, `?` marks
    unknown topology.
    """
    nodes = []
    number = 0
    for line in picture.strip().splitlines():
        head, _, drawn = line.strip().partition(":")
        words = head.split()
        name, flags = words[0], words[1:]
        gpu_class = next((word for word in flags if "gb" in word), "h100-sxm-80gb")
        gpus = []
        unknown = "?" in drawn
        for domain, group in enumerate(drawn.replace("?", "").strip().split("-")):
            for sign in group.strip():
                number += 1
                gpus.append(
                    GpuView(
                        pk=number,
                        uuid=f"GPU-{number}",
                        index=len(gpus),
                        gpu_class=gpu_class,
                        memory_total_mib=81_920,
                        memory_used_mib=70_000 if sign == "m" else 0,
                        domain="" if unknown else f"{name}-{domain}",
                        holder="other/1" if sign == "x" else "",
                        foreign="python (pid 77)" if sign == "f" else "",
                        schedulable=sign != "c",
                        usable=sign != "!",
                        problem="fell off the bus" if sign == "!" else "",
                    )
                )
        status = next((s for s in NodeStatus if s.value in flags), NodeStatus.READY)
        labels = dict(word.split("=") for word in flags if word.startswith("rack="))
        engines = tuple(word[7:] for word in flags if word.startswith("engine=")) or ("vllm",)
        nodes.append(
            NodeView(
                pk=len(nodes) + 1,
                name=name,
                status=status,
                schedulable="cordoned" not in flags,
                silent_seconds=310.0 if status in (NodeStatus.UNREACHABLE, NodeStatus.LOST) else 1.0,
                labels=labels,
                engines=engines,
                gpus=tuple(gpus),
            )
        )
    return FleetSnapshot(nodes=tuple(nodes))


def profile(**fields: object) -> Profile:
    return parse_profile({"engine": "vllm", "model": "m", **fields})


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


def test_cards_that_others_use_are_named() -> None:
    text = (
        "0 of 1 node fit: a has 0 free h100-sxm-80gb, 1 needed (GPU 0 is held by other/1; "
        "GPU 1 is used by python (pid 77); GPU 2 is cordoned; GPU 3 fell off the bus)"
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
