"""Could this node run it: cards by class, domain, health, foreign use and memory, with the numbers that are wrong."""

from typing import Any

import pytest

from agent_client.fit import choose
from agent_client.profile import parse_profile

H100 = "h100-sxm-80gb"


def card(index: int, **fields: Any) -> dict[str, Any]:
    fixed = {"uuid": f"GPU-{index}", "class": H100, "domain": "nvswitch", "placeable": True, "mig_mode": None}
    memory = {"memory_total_mib": 81559, "memory_used_mib": 4}
    return {"index": index, **fixed, **memory, "problems": [], "processes": [], **fields}


def said(cards: list[dict[str, Any]], **profile: Any) -> str:
    chosen, problem = choose(parse_profile({"engine": "vllm", "model": "org/m", **profile}), {"gpus": cards})
    assert (problem is None) == bool(chosen)
    return problem.text if problem else " ".join(gpu["uuid"] for gpu in chosen)


def test_it_takes_as_many_as_are_needed_from_one_domain() -> None:
    cards = [card(0, domain="a"), card(1, domain="b"), card(2, domain="b"), card(3, domain="a")]
    assert said(cards, tensor_parallel=2) == "GPU-0 GPU-3"
    assert said(cards[:3], tensor_parallel=2) == "GPU-1 GPU-2"
    assert said(cards[:2], tensor_parallel=2, nvlink="off") == "GPU-0 GPU-1"


def test_stages_of_a_pipeline_may_lie_in_different_domains() -> None:
    cards = [card(0, domain="a"), card(1, domain="b"), card(2, domain="b"), card(3, domain="a"), card(4, domain="c")]
    assert said(cards, tensor_parallel=2, pipeline_parallel=2) == "GPU-0 GPU-3 GPU-1 GPU-2"
    assert "4 needed" in said(cards[1:], tensor_parallel=2, pipeline_parallel=2)
    assert said(cards, data_parallel=5) == "GPU-0 GPU-1 GPU-2 GPU-3 GPU-4"


@pytest.mark.parametrize(
    ("cards", "profile", "text"),
    [
        ([], {}, "cannot run here: this node has no GPUs"),
        ([card(0)], {"gpu_class": "l4-24gb"}, f"cannot run here: this node has {H100}, l4-24gb is needed"),
        ([card(0, domain="a"), card(1, domain="b")], {"tensor_parallel": 2}, "in one NVLink domain, 2 needed"),
        ([card(0), card(1, placeable=False, problems=[{"text": "lost"}])], {"tensor_parallel": 2}, "GPU 1 lost"),
        ([card(0, processes=[{"pid": 7, "name": "python", "foreign": True}])], {}, "GPU 0 is used by python (pid 7)"),
        ([card(0, memory_used_mib=80000)], {"memory_mib_per_gpu": 70000}, "GPU 0 has 1559 MiB free, 70000 MiB needed"),
        ([card(0, domain=None), card(1, domain=None)], {"tensor_parallel": 2}, "in one NVLink domain"),
    ],
)  # fmt: skip
def test_it_says_the_number_that_is_wrong(cards: list[dict[str, Any]], profile: dict[str, Any], text: str) -> None:
    assert text in said(cards, **profile)


def test_a_desktop_is_in_nobody_s_way_and_a_split_card_is_not_placed_on() -> None:
    assert said([card(0, processes=[{"pid": 7, "name": "Xorg", "foreign": False}])]) == "GPU-0"
    assert said([card(0, mig_mode="enabled", placeable=False), card(1)]) == "GPU-1"


def test_a_pair_over_pcie_is_accepted_where_the_topology_is_unknown() -> None:
    cards = [card(0, domain=None), card(1, domain=None)]
    assert said(cards, tensor_parallel=2, nvlink="prefer") == "GPU-0 GPU-1"
