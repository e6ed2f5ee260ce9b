"""Counters of a port as growth between two readings."""

from pathlib import Path

import pytest

from agent_client.hardware import link_counters
from agent_client.hardware.link_counters import Growth
from tests.agent.hardware.sysfs import unpack

DATA = Path(__file__).parent / "data" / "sysfs_infiniband"


def read(tmp_path: Path, sample: str, port: str) -> dict[str, int]:
    return link_counters.read(unpack((DATA / f"{sample}.sysfs").read_text(), tmp_path / "infiniband") / port)


def test_counters_that_are_no_numbers_are_absent(tmp_path: Path) -> None:
    assert read(tmp_path, "i40iw_iwarp_counters_ext", "i40iw0/ports/1") == {}
    assert link_counters.read(tmp_path / "absent") == {}


def test_both_folders_are_read(tmp_path: Path) -> None:
    counters = read(tmp_path, "h100_8xib_plus_bond", "mlx5_1/ports/1")
    assert (counters["link_downed"], counters["roce_adp_retrans"]) == (255, 3)


def test_wide_counters_replace_narrow_ones(tmp_path: Path) -> None:
    port = tmp_path / "mlx4_0" / "ports" / "1"
    for folder, name, value in (
        ("counters", "port_rcv_data", 2**32 - 1),
        ("counters_ext", "port_rcv_data_64", 2**40),
        ("counters", "link_downed", 2),
    ):
        (port / folder).mkdir(parents=True, exist_ok=True)
        (port / folder / name).write_text(f"{value}\n")
    assert link_counters.read(port) == {"port_rcv_data": 2**40, "link_downed": 2}


@pytest.mark.parametrize(
    ("name", "before", "after", "expected"),
    [
        ("link_downed", 3, 5, Growth(amount=2, per_second=0.2)),
        ("link_downed", 3, 3, Growth(amount=0, per_second=0.0)),
        ("link_downed", 250, 255, Growth(amount=5, per_second=0.5, at_least=True)),
        ("link_downed", 255, 255, None),
        ("link_downed", 255, 300, Growth(amount=45, per_second=4.5)),
        ("link_downed", 300, 300, Growth(amount=0, per_second=0.0)),
        ("link_downed", 5, 0, None),
        ("excessive_buffer_overrun_errors", 15, 15, None),
        ("port_xmit_discards", 65_535, 65_535, None),
        ("port_xmit_wait", 2**32 - 1, 2**32 - 1, None),
        ("port_rcv_data", 100, 350, Growth(amount=1000, per_second=100.0)),
        ("port_rcv_data", 2**32 - 1, 2**32 + 249, Growth(amount=1000, per_second=100.0)),
        ("port_rcv_packets", 100, 350, Growth(amount=250, per_second=25.0)),
        ("out_of_sequence", 255, 255, Growth(amount=0, per_second=0.0)),
        ("out_of_sequence", 2**64 - 1, 2**64 - 1, None),
    ],
)
def test_growth(name: str, before: int, after: int, expected: Growth | None) -> None:
    assert link_counters.growth({name: before}, {name: after}, 10.0).get(name) == expected


def test_what_one_reading_lacks_did_not_grow_from_zero() -> None:
    assert link_counters.growth({"link_downed": 1}, {"symbol_error": 7}, 10.0) == {}


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_no_time_gives_no_rate(seconds: float) -> None:
    assert link_counters.growth({"link_downed": 1}, {"link_downed": 2}, seconds) == {}
