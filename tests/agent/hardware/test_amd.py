"""AMD cards: captured and built reports of amd-smi and rocm-smi, the tools' failures, classes and XGMI domains."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_client.hardware import amd, amd_reports
from agent_client.hardware.amd import Place
from agent_client.hardware.amd_classes import gpu_class
from agent_client.hardware.amd_reports import Card, Metric

DATA = Path(__file__).parent / "data" / "amd"
EXPECTED = json.loads((DATA / "expected.json").read_text())
STATIC = (DATA / "amd_smi_static_mi300x_gpu_data.json").read_text()
METRIC = (DATA / "amd_smi_metric_list_with_warning.txt").read_text()
ROCM = (DATA / "rocm_smi_6.2.4_navi32.json").read_text()


def gpus_of(name: str) -> list[dict[str, Any]]:
    text = (DATA / name).read_text()
    if name.startswith("rocm"):
        report = amd_reports.parse_rocm(text)
        assert report is not None
        return amd.assemble(*report, {})
    if "metric" in name:
        return amd.assemble((), amd_reports.parse_metric(text) or (), {})
    return amd.assemble(amd_reports.parse_static(text) or (), (), {})


def metrics_of(name: str) -> dict[int, Metric]:
    text = (DATA / name).read_text()
    return {metric.index: metric for metric in amd_reports.parse_metric(text) or ()}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_sample_reads_as_expected(name: str) -> None:
    gpus = {gpu["index"]: gpu for gpu in gpus_of(name)}
    metrics = metrics_of(name) if "metric" in name else {}
    assert set(gpus) == {wanted["index"] for wanted in EXPECTED[name]}
    for wanted in EXPECTED[name]:
        gpu = gpus[wanted["index"]]
        for key, value in wanted.items():
            match key:
                case "memory_mib" | "used_mib":
                    assert gpu[{"memory_mib": "memory_total_mib", "used_mib": "memory_used_mib"}[key]] == value
                case "temperature":
                    assert metrics[wanted["index"]].temperature_celsius == value
                case "power_w":
                    assert metrics[wanted["index"]].power_watts == value
                case "problems":
                    found = {problem["code"] for problem in gpu["problems"]} - {"not_answering"}  # no serial in there
                    assert found == set(value)
                case "note":
                    pass
                case _:
                    assert gpu[key] == value, key


def test_class_of_a_name_that_covers_two_products_is_the_chips() -> None:
    (gpu,) = gpus_of("rocm_smi_6.2.4_navi32.json")
    assert (gpu["class"], gpu["uuid"]) == ("navi-32-16gb", "GPU-1111222233334444")


@pytest.mark.parametrize(
    ("name", "memory_mib", "slot", "expected"),
    [
        ("AMD Instinct MI300X", 196_592, None, "mi300x-oam-192gb"),
        ("AMD Instinct MI300X VF", 196_592, None, "mi300x-oam-192gb"),
        ("AMD Instinct MI300X", 24_576, None, "mi300x-oam-24gb"),
        ("AMD Instinct MI325X", 262_128, None, "mi325x-oam-256gb"),
        ("AMD Instinct MI355X", 294_896, None, "mi355x-oam-288gb"),
        ("AMD Instinct MI210", 65_536, None, "mi210-pcie-64gb"),
        ("AMD Instinct MI210", 65_520, None, "mi210-pcie-64gb"),
        ("AMD INSTINCT MI250 (MCM) OAM AC MBA", 65_520, None, "mi250-oam-64gb"),
        ("Arcturus GL-XL [Instinct MI100]", 32_752, None, "mi100-pcie-32gb"),
        ("AMD Radeon RX 7800 XT", 16_368, None, "rx-7800-xt-16gb"),
        ("AMD Radeon PRO W7900", 46_064, None, "pro-w7900-48gb"),
        ("AMD Radeon Graphics", 512, None, "amd-radeon-graphics-1gb"),
        ("AMD Instinct MI999X", 442_368, "OAM", "mi999x-oam-432gb"),
        ("AMD Instinct MI999X", 442_368, None, "mi999x-432gb"),
        ("AMD Radeon RX 7800 XT", None, "PCIE", "rx-7800-xt"),
        (None, None, None, "unknown"),
    ],
)
def test_class(name: str | None, memory_mib: int | None, slot: str | None, expected: str) -> None:
    assert gpu_class(name, memory_mib, slot) == expected


def static(*entries: dict[str, Any]) -> tuple[Card, ...]:
    cards = amd_reports.parse_static(json.dumps(list(entries)))
    assert cards is not None
    return cards


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ({"value": 196592, "unit": "MB"}, 196_592),
        ({"value": "196592", "unit": "MB"}, 196_592),
        ({"value": 192, "unit": "GB"}, 196_608),
        (196592, 196_592),
        ("196592", 196_592),
        ({"value": 0, "unit": "MB"}, None),
        ({"value": "N/A", "unit": "MB"}, None),
        ({"value": 5, "unit": "parsecs"}, None),
        ({"value": 5, "unit": None}, None),
        ({"value": {"value": 5}}, None),
        ("N/A", None),
        (-5, None),
        (True, None),
        (None, None),
        ([196592], None),
        (10**400, None),
        (float("nan"), None),
        (float("inf"), None),
    ],
)
def test_memory_is_a_figure_or_nothing(size: Any, expected: int | None) -> None:
    (card,) = static({"gpu": 0, "vram": {"size": size}})
    assert card.memory_mib == expected


@pytest.mark.parametrize("where", [{"vram": {"vram_size": 16368}}, {"vram_size": 16368}])
def test_older_places_of_the_memory(where: dict[str, Any]) -> None:
    assert static({"gpu": 0, **where})[0].memory_mib == 16_368


@pytest.mark.parametrize(
    ("serial", "expected"),
    [
        ("0x1111222233334444", "1111222233334444"),
        ("0xCE5D239FE548AF74", "ce5d239fe548af74"),
        ("0x12345678", "0000000012345678"),
        ("2222333344445555", "2222333344445555"),
        ("0x0", None),
        ("0x0000000000000000", None),
        ("111", None),
        ("N/A", None),
        (17, None),
    ],
)
def test_serial(serial: Any, expected: str | None) -> None:
    assert static({"gpu": 0, "asic": {"asic_serial": serial}})[0].serial == expected


def test_card_without_unique_id_is_shown_and_not_placeable() -> None:
    (gpu,) = amd.assemble(static({"gpu": 3, "asic": "N/A"}), (), {})
    assert (gpu["index"], gpu["uuid"], gpu["name"], gpu["memory_total_mib"]) == (3, None, None, None)
    assert (gpu["placeable"], [problem["code"] for problem in gpu["problems"]]) == (False, ["not_answering"])


def test_parts_of_one_card_are_not_mixed_up() -> None:
    entries = [
        {"gpu": index, "asic": {"asic_serial": "0x11"}, "bus": {"bdf": f"0000:83:00.{index}"}} for index in range(2)
    ]
    gpus = amd.assemble(static(*entries), (), {})
    assert [gpu["uuid"] for gpu in gpus] == [None, None]
    assert {problem["code"] for gpu in gpus for problem in gpu["problems"]} == {"partitioned"}


def test_healthy_card_has_the_shape_of_every_gpu() -> None:
    (gpu,) = gpus_of("amd_smi_static_mi300x_gpu_data.json")
    assert set(gpu) >= {
        *("index", "uuid", "name", "class", "bus", "memory_total_mib", "memory_used_mib", "compute_capability"),
        *("numa", "domain", "mig", "placeable", "shared_memory", "processes", "problems"),
    }
    assert (gpu["placeable"], gpu["problems"], gpu["compute_capability"], gpu["numa"]) == (True, [], None, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "N/A",
        "ERROR: driver not loaded",
        '{"error": "no device"}',
        STATIC[: len(STATIC) // 2],
        '{"gpu_data": "N/A"}',
        "[1, 2]",
        "[" * 100_000,
        '{"gpu": ' + "9" * 5000 + "}",
    ],
)
def test_what_is_no_report(text: str) -> None:
    assert amd_reports.parse_static(text) is None
    assert amd_reports.parse_metric(text) is None
    assert amd_reports.parse_rocm(text) is None


def test_warnings_around_the_report_are_passed_over() -> None:
    text = "WARNING: not in group\n[info] probing\n{not json\n" + STATIC + "\nbye [1]\n"
    assert amd_reports.parse_static(text) == amd_reports.parse_static(STATIC)


def test_entries_without_a_usable_number_are_skipped() -> None:
    entries = [{"gpu": number} for number in (-1, True, "x", None, 10**30, 1.5, 2, 2)]
    assert [card.index for card in static(*entries, {})] == [2]


# --- the programs -----------------------------------------------------------------------------------------------------


def program(tmp_path: Path, name: str, script: str) -> str:
    path = tmp_path / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def amd_smi(tmp_path: Path, *, static: str = STATIC, metric: str = METRIC, topology: str = "", code: int = 0) -> str:
    for name, text in (("static", static), ("metric", metric), ("topology", topology)):
        (tmp_path / f"{name}.out").write_text(text)
    return program(tmp_path, "amd-smi", f'cat "{tmp_path}/$1.out"; echo "a warning" >&2; exit {code}')


def test_static_and_metric_are_joined_by_number(tmp_path: Path) -> None:
    found = amd.read(amd_smi(tmp_path), drm_root=tmp_path / "drm")
    assert (found.source, found.driver, found.error) == ("amd-smi", "6.19.14", None)
    assert [(gpu["index"], gpu["memory_used_mib"], gpu["placeable"]) for gpu in found.gpus] == [
        (0, 0, False),  # two uncorrectable errors
        (1, 49_148, False),  # measured, but not described: it has no name and no id
    ]


def test_card_is_shown_when_only_the_measuring_fails(tmp_path: Path) -> None:
    found = amd.read(amd_smi(tmp_path, metric="broken"), drm_root=tmp_path / "drm")
    assert (found.source, found.gpus[0]["memory_used_mib"], found.gpus[0]["placeable"]) == ("amd-smi", None, True)
    assert found.error == "cannot read memory and ECC from amd-smi metric: a warning"


def test_rocm_smi_is_asked_when_amd_smi_fails(tmp_path: Path) -> None:
    (tmp_path / "rocm.out").write_text(ROCM)
    older = program(tmp_path, "rocm-smi", f'cat "{tmp_path}/rocm.out"')
    found = amd.read(amd_smi(tmp_path, static="", code=255), older, drm_root=tmp_path / "drm")
    assert (found.source, found.error, [gpu["memory_used_mib"] for gpu in found.gpus]) == ("rocm-smi", None, [11_077])


def test_both_failing_is_unavailable_with_both_reasons(tmp_path: Path) -> None:
    older = program(tmp_path, "rocm-smi", "echo no ROCm >&2; exit 2")
    found = amd.read(amd_smi(tmp_path, static="", code=255), older, drm_root=tmp_path / "drm")
    assert (found.source, found.gpus) == ("unavailable", [])
    assert found.error == "cannot read GPUs from amd-smi: a warning; rocm-smi: no ROCm"


def test_no_tool_is_no_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert amd.read(drm_root=tmp_path) == amd.Found(source="none")


def test_tool_that_finds_no_card_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = amd_smi(tmp_path, static="[]")
    monkeypatch.setattr("shutil.which", lambda name: None)
    found = amd.read(newer, drm_root=tmp_path / "drm")
    assert (found.source, found.gpus, found.error) == ("amd-smi", [], None)


def test_hanging_tool_is_not_followed_by_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_client.hardware.program.run.__kwdefaults__", {"deadline_seconds": 0.2, "name": None})
    newer = program(tmp_path, "amd-smi", "sleep 60")
    older = program(tmp_path, "rocm-smi", f'touch "{tmp_path}/asked"')
    found = amd.read(newer, older, drm_root=tmp_path / "drm")
    assert found.error == "cannot read GPUs from amd-smi: it did not answer within 0.2 s"
    assert not (tmp_path / "asked").exists()


# --- XGMI -------------------------------------------------------------------------------------------------------------


def drm(tmp_path: Path, cards: dict[str, str | None]) -> Path:
    """PCI address → hive id, `None` for a card without XGMI; in sysfs' form."""
    for number, (bus, hive) in enumerate(cards.items()):
        device = tmp_path / "devices" / bus
        (device / "xgmi_hive_info" if hive else device).mkdir(parents=True)
        if hive:
            (device / "xgmi_hive_info" / "xgmi_hive_id").write_text(hive + "\n")
        (device / "numa_node").write_text(f"{number % 2}\n")
        (tmp_path / "drm" / f"card{number}").mkdir(parents=True)
        (tmp_path / "drm" / f"card{number}" / "device").symlink_to(device)
        (tmp_path / "drm" / f"card{number}-DP-1").mkdir()
    return tmp_path / "drm"


def machine(name: str, *buses: str) -> tuple[Card, ...]:
    return static(
        *(
            {"gpu": n, "asic": {"market_name": name, "asic_serial": hex(n + 1)}, "bus": {"bdf": bus}}
            for n, bus in enumerate(buses)
        )
    )


def groups(domains: list[dict[str, Any]]) -> list[tuple[str, list[int]]]:
    return [(domain["kind"], domain["gpus"]) for domain in domains]


def test_one_hive_is_one_domain(tmp_path: Path) -> None:
    buses = [f"0000:{number:02x}:00.0" for number in (5, 38, 70, 93)]
    known = amd.places(drm(tmp_path, dict(zip(buses, ["77", "77", "88", "88"], strict=True))))
    gpus = amd.assemble(machine("AMD Instinct MI300X", *buses), (), known)
    domains = amd.xgmi_domains(gpus, known)
    assert groups(domains) == [("bridge", [0, 1]), ("bridge", [2, 3])]
    assert domains[0] == {"id": "xgmi-77", "gpus": [0, 1], "kind": "bridge", "cluster": None, "clique": None}
    assert [gpu["numa"] for gpu in gpus] == [0, 1, 0, 1]


def test_card_without_xgmi_is_alone(tmp_path: Path) -> None:
    buses = ["0000:03:00.0", "0000:04:00.0"]
    known = amd.places(drm(tmp_path, dict.fromkeys(buses)))
    gpus = amd.assemble(machine("AMD Radeon RX 7800 XT", *buses), (), known)
    assert groups(amd.xgmi_domains(gpus, known)) == [("single", [0]), ("single", [1])]


def test_hive_zero_and_unreadable_hives_are_none(tmp_path: Path) -> None:
    root = drm(tmp_path, {"0000:03:00.0": "0", "0000:04:00.0": "junk", "0000:05:00.0": None})
    assert {place.hive for place in amd.places(root).values()} == {None}
    assert amd.places(tmp_path / "absent") == {}


def test_module_whose_hive_is_hidden_is_in_no_domain_until_links_tell() -> None:
    buses = [f"0000:0{number}:00.0" for number in range(4)]
    known = {bus: Place() for bus in buses}
    gpus = amd.assemble(machine("AMD Instinct MI300X VF", *buses), (), known)
    assert amd.xgmi_domains(gpus, known) == []
    links = {0: frozenset({2}), 1: frozenset(), 2: frozenset({0}), 3: frozenset({2})}
    assert groups(amd.xgmi_domains(gpus, known, links)) == [("bridge", [0, 2, 3]), ("single", [1])]


def test_links_are_asked_for_where_sysfs_is_silent(tmp_path: Path) -> None:
    entries = [
        {
            "gpu": gpu,
            "links": [
                {"gpu": 1 - gpu, "link_type": "XGMI", "link_status": "ENABLED"},
                {"gpu": gpu, "link_type": "SELF"},
            ],
        }
        for gpu in range(2)
    ]
    text = json.dumps(
        [
            {
                "gpu": n,
                "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": hex(n + 1)},
                "vram": {"size": 196592},
            }
            for n in range(2)
        ]
    )
    found = amd.read(amd_smi(tmp_path, static=text, topology=json.dumps(entries)), drm_root=tmp_path / "drm")
    assert groups(found.domains) == [("bridge", [0, 1])]
    assert [gpu["domain"] for gpu in found.gpus] == [found.domains[0]["id"]] * 2


@pytest.mark.parametrize(
    ("link", "peers"),
    [
        ({"gpu": 1, "link_type": "XGMI", "link_status": "DISABLED"}, set()),
        ({"gpu": 1, "link_type": "PCIE", "link_status": "ENABLED"}, set()),
        ({"gpu": 1, "link_type": "XGMI"}, {1}),
        ({"gpu": "N/A", "link_type": "XGMI"}, set()),
        ("N/A", set()),
    ],
)
def test_links(link: Any, peers: set[int]) -> None:
    assert amd_reports.parse_xgmi_links(json.dumps([{"gpu": 0, "links": [link]}])) == {0: peers}
    assert amd_reports.parse_xgmi_links(json.dumps([{"gpu": 0, "links": link}])) == {0: set()}
