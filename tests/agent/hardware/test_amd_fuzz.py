"""Random reports: parsing never raises, and each figure of the answer stands in the report."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_client.hardware import amd, amd_reports
from agent_client.hardware.amd_classes import gpu_class
from tests.support.examples import examples

relaxed = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
SAMPLES = [
    (Path(__file__).parent / "data" / "amd" / name).read_text()
    for name in (
        "amd_smi_static_mi300x_gpu_data.json",
        "amd_smi_metric_list_with_warning.txt",
        "rocm_smi_6.2.4_navi32.json",
        "rocm_smi_hygon.json",
    )
]

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**70),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["N/A", "", "196592", "0x1111222233334444", "0000:83:00.0", "AMD Instinct MI300X", "ERR!"]),
)
quantities = st.one_of(
    leaves, st.fixed_dictionaries({"value": leaves, "unit": st.sampled_from(["MB", "GB", "B", "W", "", None, 3])})
)
anything = st.recursive(
    quantities,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
)


def group(*names: str) -> st.SearchStrategy[Any]:
    return st.one_of(st.fixed_dictionaries({}, optional=dict.fromkeys(names, quantities)), anything)


LINKS = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"gpu": st.one_of(st.integers(0, 4), leaves), "link_type": st.sampled_from(["XGMI", "PCIE", "SELF", None])}
        ),
        anything,
    ),
    max_size=4,
)
ENTRY = st.fixed_dictionaries(
    {"gpu": st.one_of(st.integers(0, 4), leaves)},
    optional={
        "asic": group("market_name", "asic_serial", "target_graphics_version"),
        "bus": group("bdf", "slot_type"),
        "vram": group("size", "vram_size"),
        "vram_size": quantities,
        "driver": group("version"),
        "numa": group("node"),
        "mem_usage": group("total_vram", "used_vram"),
        "usage": group("gfx_activity"),
        "temperature": group("hotspot", "edge"),
        "power": group("socket_power"),
        "ecc": group("total_uncorrectable_count"),
        "links": st.one_of(LINKS, anything),
    },
)
ENTRIES = st.lists(st.one_of(ENTRY, anything), max_size=5)
REPORT = st.one_of(ENTRIES, st.fixed_dictionaries({"gpu_data": ENTRIES}), anything)
ROCM_FIELDS = [
    *("Card Series", "Card series", "VRAM Total Memory (B)", "vram Total Memory (MiB)", "VRAM Total Used Memory (B)"),
    *("Unique ID", "PCI Bus", "GFX Version", "GPU use (%)", "Temperature (Sensor edge) (C)", ""),
]
ROCM = st.dictionaries(
    st.sampled_from(["card0", "card1", "card00", "system", "cardx"]),
    st.one_of(st.dictionaries(st.sampled_from(ROCM_FIELDS), quantities), anything),
)


def numbers(data: Any) -> Iterator[float]:
    """All numbers of a report, those in texts too."""
    if isinstance(data, dict | list):
        for inner in data.values() if isinstance(data, dict) else data:
            yield from numbers(inner)
    elif isinstance(data, str):
        try:
            yield float(data)
        except ValueError:
            return
    elif isinstance(data, int | float) and not isinstance(data, bool) and abs(data) < 2**70:
        yield data


def sizes(data: Any) -> set[int]:
    factors = (2**-20, 2**-10, 1, 2**10)
    return {int(n * factor) for n in numbers(data) if abs(n) < 2**63 for factor in factors}


def check(cards: Any, metrics: Any, data: Any) -> None:
    known, mib = {kind(n) for n in numbers(data) for kind in (int, float) if abs(n) < 2**63}, sizes(data)
    for gpu in amd.assemble(cards, metrics, {}):
        assert gpu["memory_total_mib"] is None or gpu["memory_total_mib"] in mib - {0}
        assert gpu["memory_used_mib"] is None or gpu["memory_used_mib"] in mib
        assert gpu["numa"] is None or gpu["numa"] in known
        assert gpu["placeable"] is (not gpu["problems"])
        json.dumps(gpu, ensure_ascii=False, allow_nan=False).encode()
    for metric in metrics:
        for figure in (metric.busy_percent, metric.temperature_celsius, metric.power_watts, metric.ecc_uncorrectable):
            assert figure is None or figure in known


@relaxed
@given(REPORT, st.sampled_from(["", "WARNING: odd\n", "[oops\n{\n"]))
def test_amd_smi_report(data: Any, before: str) -> None:
    text = before + json.dumps(data)
    cards, metrics = amd_reports.parse_static(text), amd_reports.parse_metric(text)
    check(cards or (), metrics or (), data)
    links = amd_reports.parse_xgmi_links(text)
    gpus = amd.assemble(cards or (), (), {})
    members = [index for domain in amd.xgmi_domains(gpus, {}, links) for index in domain["gpus"]]
    assert sorted(members) == sorted({gpu["index"] for gpu in gpus} & set(links or {}))


@relaxed
@given(ROCM)
def test_rocm_smi_report(data: Any) -> None:
    report = amd_reports.parse_rocm(json.dumps(data))
    if report is not None:
        check(*report, data)


@relaxed
@given(st.sampled_from(SAMPLES), st.data())
def test_damaged_sample(sample: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(sample)))
    end = data.draw(st.integers(start, len(sample)))
    text = sample[:start] + data.draw(st.text(max_size=8)) + sample[end:]
    amd.assemble(amd_reports.parse_static(text) or (), amd_reports.parse_metric(text) or (), {})
    report = amd_reports.parse_rocm(text)
    if report is not None:
        amd.assemble(*report, {})


@relaxed
@given(st.text(), st.one_of(st.none(), st.integers(1, 2**31 - 1)), st.one_of(st.none(), st.text(max_size=6)))
def test_class_is_a_word(name: str, memory_mib: int | None, slot: str | None) -> None:
    word = gpu_class(name, memory_mib, slot)
    assert word
    assert set(word) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")
