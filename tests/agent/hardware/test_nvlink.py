"""NVLink domains from links and fabric: bridges, switches, racks, links that are down, fabrics that are not ready."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent_client.hardware.nvlink import CardLinks, FabricInfo, Link, domains, down, on_switch

BUS = ["0000:18:00.0", "0000:29:00.0", "0000:3a:00.0", "0000:4b:00.0"]
TO_SWITCH = Link(up=True, type=2, bus="0000:05:00.0")
READY = FabricInfo(state=3, status=0)


def bridge(peer: int, *, up: bool = True) -> Link:
    return Link(up=up, type=0, bus=BUS[peer] if up else None)


def card(index: int, *links: Link, fabric: FabricInfo | None = None) -> CardLinks:
    return CardLinks(index=index, bus=BUS[index], links=links, fabric=fabric)


def shape(*cards: CardLinks) -> list[tuple[str, list[int]]]:
    return [(domain["kind"], domain["gpus"]) for domain in domains(cards)]


def test_pairs_with_bridges() -> None:
    cards = [card(i, bridge(i ^ 1), bridge(i ^ 1)) for i in range(4)]
    assert shape(*cards) == [("bridge", [0, 1]), ("bridge", [2, 3])]
    assert domains(cards)[0]["id"] == "nvlink-0000:18:00.0"


def test_a_bridge_with_all_links_down_joins_nothing() -> None:
    cut = [card(0, bridge(1, up=False)), card(1, bridge(0, up=False)), card(2, bridge(3)), card(3, bridge(2))]
    assert shape(*cut) == [("single", [0]), ("single", [1]), ("bridge", [2, 3])]


def test_a_chain_is_one_domain() -> None:
    chain = [card(0, bridge(1)), card(1, bridge(0), bridge(2)), card(2, bridge(1)), card(3)]
    assert shape(*chain) == [("bridge", [0, 1, 2]), ("single", [3])]


def test_a_switch_joins_all_whose_fabric_is_ready() -> None:
    ready = [card(i, TO_SWITCH, fabric=READY) for i in range(3)]
    sick = card(3, TO_SWITCH, fabric=FabricInfo(state=2, status=0))
    assert shape(*ready, sick) == [("switch", [0, 1, 2]), ("single", [3])]
    wrong = card(3, TO_SWITCH, fabric=FabricInfo(state=3, status=999))
    assert shape(*ready, wrong) == [("switch", [0, 1, 2]), ("single", [3])]


def test_without_fabric_information_links_alone_decide() -> None:
    assert shape(*(card(i, TO_SWITCH) for i in range(4))) == [("switch", [0, 1, 2, 3])]
    assert shape(card(0, TO_SWITCH), card(1)) == [("single", [0]), ("single", [1])]


def test_an_old_driver_or_a_virtual_machine_that_hides_the_other_end_means_a_switch() -> None:
    assert shape(*(card(i, Link(up=True)) for i in range(2))) == [("switch", [0, 1])]
    assert shape(*(card(i, Link(up=True, type=255, bus="0000:ff:00.0")) for i in range(2))) == [("switch", [0, 1])]
    assert shape(card(0, Link(up=True, bus=BUS[1])), card(1, Link(up=True, bus=BUS[0]))) == [("bridge", [0, 1])]


def test_a_processor_at_the_other_end_is_no_switch() -> None:
    """POWER9 machines: each card's links end at a CPU too."""
    to_processor = Link(up=True, type=1, bus="0004:00:00.0")
    cards = [card(0, to_processor, bridge(1)), card(1, to_processor, bridge(0)), card(2, to_processor)]
    assert shape(*cards) == [("bridge", [0, 1]), ("single", [2])]


def test_an_old_driver_and_a_partner_that_does_not_answer_make_no_switch() -> None:
    alone = [card(0, Link(up=True, bus=BUS[1])), card(2, Link(up=True, bus=BUS[3]))]
    found = domains(alone, silent=[BUS[1], None, BUS[3]])
    assert [(domain["kind"], domain["gpus"]) for domain in found] == [("single", [0]), ("single", [2])]


def test_a_rack_is_named_by_cluster_and_clique() -> None:
    rack = FabricInfo(state=3, status=0, cluster="4f0e7a5c-1d2b-4396-8a7b-0c1d2e3f4a5b", clique=2)
    (found,) = domains([card(i, TO_SWITCH, fabric=rack) for i in range(4)])
    assert (found["kind"], found["id"], found["clique"]) == ("rack", f"{rack.cluster}.2", 2)


def test_links_down_are_told_where_some_are_up() -> None:
    assert down(card(0, bridge(1), bridge(1, up=False)), switched=False) == "1 of 2 NVLinks are up"
    assert down(card(0, bridge(1), Link(up=None)), switched=False) == "1 of 2 NVLinks are up, 1 does not answer"
    assert down(card(0, bridge(1, up=False)), switched=False) is None
    assert down(card(0, bridge(1)), switched=False) is None


def test_none_up_is_told_where_a_switch_is_and_the_card_is_whole() -> None:
    unlit = card(0, bridge(1, up=False), bridge(1, up=False))
    assert down(unlit, switched=True) == "0 of 2 NVLinks are up"
    assert down(replace(unlit, mig=True), switched=True) is None
    assert down(card(0), switched=True) is None
    assert on_switch([unlit, card(1, TO_SWITCH)])
    assert on_switch([replace(unlit, fabric=FabricInfo(state=1, status=0))])
    assert not on_switch([unlit, card(1, bridge(2)), card(2, bridge(1))])


def test_health_mask_says_what_is_bad() -> None:
    assert (
        FabricInfo(state=3, status=0, health_mask=0b10_01_10_01).health
        == "Unhealthy (degraded bandwidth, route unhealthy)"
    )
    assert FabricInfo(state=3, status=0, health_mask=0b10101010, health_summary=1).health == "Healthy"
    assert FabricInfo(state=3, status=0, health_summary=3).health == "Limited capacity"
    assert FabricInfo(state=3, status=0).health is None


LINK = st.builds(
    Link,
    up=st.sampled_from([True, False, None]),
    type=st.sampled_from([None, 0, 1, 2, 255]),
    bus=st.sampled_from([None, "0000:05:00.0", *BUS]),
)
FABRIC = st.none() | st.builds(
    FabricInfo,
    state=st.integers(0, 4),
    status=st.sampled_from([0, 999]),
    cluster=st.sampled_from(["", "c"]),
    clique=st.integers(0, 2),
)


@given(st.lists(st.tuples(st.lists(LINK, max_size=4), FABRIC), max_size=4), st.randoms(use_true_random=False))
def test_each_card_is_in_exactly_one_domain_whatever_the_order(
    given: list[tuple[list[Link], FabricInfo | None]], chance: random.Random
) -> None:
    cards = [CardLinks(index=i, bus=BUS[i], links=links, fabric=fabric) for i, (links, fabric) in enumerate(given)]
    found = domains(cards)
    assert sorted(index for domain in found for index in domain["gpus"]) == list(range(len(cards)))
    assert len({domain["id"] for domain in found}) == len(found)
    assert all((domain["kind"] == "single") <= (len(domain["gpus"]) == 1) for domain in found)
    chance.shuffle(cards)
    assert domains(cards) == found
