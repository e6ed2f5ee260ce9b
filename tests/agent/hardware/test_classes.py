"""Every row of gpu_names.csv, names that are not in it, and properties that hold for any name."""

import csv
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_client.hardware.classes import gpu_class, is_unified

DATA = Path(__file__).parent / "data"
ROWS = list(csv.DictReader((DATA / "gpu_names.csv").read_text(encoding="utf-8").splitlines()))
KNOWN = [(row["name"], int(row["memory_mib"]) if row["memory_mib"] else None, row["class"]) for row in ROWS]


def test_the_table_is_the_whole_table() -> None:
    assert len(KNOWN) == 140


@pytest.mark.parametrize(("name", "memory", "expected"), KNOWN, ids=[f"{n}-{m}" for n, m, _ in KNOWN])
def test_every_known_name(name: str, memory: int | None, expected: str) -> None:
    assert gpu_class(name, memory) == expected


@pytest.mark.parametrize(
    ("name", "memory", "expected"),
    [
        # Older drivers and ECC, from the notes of the table.
        ("NVIDIA A10G", 22731, "a10g-24gb"),
        ("Tesla T4", 15109, "t4-16gb"),
        ("Tesla P40", 22919, "p40-24gb"),
        ("Tesla P4", 7680, "p4-8gb"),
        ("NVIDIA A10", 24564, "a10-24gb"),
        ("NVIDIA RTX A6000", 48685, "rtx-a6000-48gb"),
        ("Quadro RTX 8000", 46080, "quadro-rtx-8000-48gb"),
        ("GeForce RTX 3090", 24268, "rtx-3090-24gb"),
        ("NVIDIA RTX PRO 5000 Blackwell", 73415, "rtx-pro-5000-blackwell-72gb"),
        ("NVIDIA GeForce RTX 5060 Ti", 8151, "rtx-5060-ti-8gb"),
        # Not in the table.
        ("NVIDIA A100-SXM4-40GB", None, "a100-sxm-40gb"),
        ("NVIDIA H100 SXM5 80GB", 81559, "h100-sxm-80gb"),
        ("NVIDIA B100", 183359, "b100-sxm-180gb"),
        ("NVIDIA GeForce RTX 3050 6GB Laptop GPU", 6144, "rtx-3050-laptop-6gb"),
        ("NVIDIA GeForce GTX 1060 3GB", 3072, "gtx-1060-3gb"),
        ("NVIDIA RTX A5000 Laptop GPU", 16384, "rtx-a5000-laptop-16gb"),
        ("NVIDIA RTX PRO 4000 Blackwell SFF Edition", 24467, "rtx-pro-4000-blackwell-sff-24gb"),
        ("NVIDIA RTX PRO 5000 Blackwell Generation Laptop GPU", 24463, "rtx-pro-5000-blackwell-laptop-24gb"),
        ("Quadro RTX 5000 with Max-Q Design", 16384, "quadro-rtx-5000-maxq-16gb"),
        ("Tesla V100-SXM3-32GB-H", 32768, "v100-sxm-32gb"),
        ("NVIDIA TITAN X (Pascal)", 12288, "titan-x-pascal-12gb"),
        ("NVIDIA T1000 8GB", 8192, "t1000-8gb"),
        ("nvidia  geforce   rtx 4090", 24564, "rtx-4090-24gb"),
        ("NVIDIA® GeForce(TM) RTX 4090", 24564, "rtx-4090-24gb"),
        ("Xavier (nvgpu)", None, "xavier-unified"),
        ("NVIDIA GB10", 124610, "gb10-unified"),
        ("GRID A100-4-20C", 20480, "grid-a100-4-20c-20gb"),
        ("GRID T4-2B4", 2048, "grid-t4-2b4-2gb"),
        ("NVIDIA RTX Pro 6000 Blackwell DC-48Q", 49152, "vgpu-rtx-pro-6000-blackwell-dc-48q-48gb"),
        ("NVIDIA L4-24Q", 24576, "vgpu-l4-24q-24gb"),
        ("GRID K520", 4096, "grid-k520-4gb"),
        ("NVIDIA B200 MIG 1g.23gb", 22528, "b200-sxm-180gb-mig-1g.23gb"),
        ("NVIDIA A30 MIG 1g.6gb", 5952, "a30-24gb-mig-1g.6gb"),
        ("NVIDIA GH200 480GB MIG 1g.12gb", 11008, "gh200-96gb-mig-1g.12gb"),
        ("NVIDIA GH200 144G HBM3e MIG 1g.18gb", 16384, "gh200-144gb-mig-1g.18gb"),
        ("AMD Instinct MI250X", 65520, "mi250x-oam-64gb"),
        ("AMD Instinct MI300X OAM", 196592, "mi300x-oam-192gb"),
        ("AMD Instinct MI100", 32752, "mi100-pcie-32gb"),
        ("AMD Radeon PRO W7900", 49136, "radeon-pro-w7900-48gb"),
        ("", None, "unknown"),
        ("???", 0, "unknown"),
    ],
)
def test_names_beyond_the_table(name: str, memory: int | None, expected: str) -> None:
    assert gpu_class(name, memory) == expected


def test_a_card_that_hides_its_memory_keeps_its_class_where_the_name_has_one_size() -> None:
    assert gpu_class("Tesla T4", None) == "t4-16gb"
    assert gpu_class("NVIDIA H100 NVL", None) == "h100-nvl-94gb"
    assert gpu_class("NVIDIA GeForce RTX 4060 Ti", None) == "rtx-4060-ti"  # 8 or 16: not guessed


def test_a_profile_from_elsewhere_is_appended_to_the_class_of_the_whole_card() -> None:
    assert gpu_class("NVIDIA H200", 143771, mig_profile="1g.18gb") == "h200-sxm-141gb-mig-1g.18gb"
    assert gpu_class("NVIDIA H200", 143771, mig_profile="") == "h200-sxm-141gb-mig"


def test_the_owner_has_the_last_word() -> None:
    overrides = ((r"[", "never"), (r"NVIDIA Graphics Device", "Lab Card 80GB"), (r".*", "other"))
    assert gpu_class("NVIDIA Graphics Device", 81559, overrides=overrides) == "lab-card-80gb"
    assert gpu_class("NVIDIA Graphics Device MIG 1g.10gb", 9984, overrides=overrides) == "other-mig-1g.10gb"
    assert gpu_class("NVIDIA Graphics Device", 81559) == "graphics-device-80gb"


def test_unified_memory_is_told_by_the_chip() -> None:
    assert [is_unified(name) for name in ("NVIDIA GB10", "NVIDIA Thor", "Orin (nvgpu)")] == [True] * 3
    assert not any(is_unified(name) for name in ("NVIDIA GB200", "NVIDIA GH200 480GB", "Tesla T4", ""))


NAMES = st.one_of(st.text(max_size=80), st.sampled_from([name for name, _, _ in KNOWN]))


@given(NAMES, st.none() | st.integers(-(10**6), 10**9), st.none() | st.text(max_size=12))
@example("NVIDIA 99999999999999999999GB", None, None)
@example("-16Q", 1, None)
@example("٣٣GB ٤", 1, None)
@example("nvl", None, None)
def test_any_name_gives_a_plain_stable_word(name: str, memory: int | None, profile: str | None) -> None:
    found = gpu_class(name, memory, mig_profile=profile)
    assert found == gpu_class(name, memory, mig_profile=profile)
    card, _, slice_ = found.partition("-mig-")
    assert re.fullmatch(r"[a-z0-9.-]{1,100}", card)
    assert re.fullmatch(r"[a-z0-9.+-]{0,100}", slice_)


GDDR = [
    (name, memory, expected)
    for name, memory, expected in KNOWN
    if memory and re.match(r"(?:quadro-rtx|rtx|gtx|titan-rtx|[alt]\d|p4|m60|graphics-device-6)", expected)
    if "mig" not in expected and not re.match(r"a100|a800|a30-|l20x", expected)
]


@given(st.sampled_from(GDDR), st.booleans(), st.integers(0, 120))
def test_ecc_on_or_off_does_not_change_the_class(row: tuple[str, int, str], ecc: bool, reserved_mib: int) -> None:
    """ECC on GDDR takes a sixteenth; drivers before 510 hide some more (121 MiB on the P40 of the table)."""
    name, _, expected = row
    size = int(expected.rpartition("-")[2].removesuffix("gb"))
    assert gpu_class(name, size * (960 if ecc else 1024) - reserved_mib) == expected
