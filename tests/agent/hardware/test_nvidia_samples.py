"""Each captured report against its expected figures; each health field changed in a real report; MIG; hostile XML."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from agent_client.hardware import nvidia_csv, nvidia_xml
from agent_client.hardware.cards import Found, HostMemory
from agent_client.hardware.finish import finish
from tests.agent.hardware import samples

SHAPE = {
    *("index", "uuid", "name", "class", "bus", "memory_total_mib", "memory_used_mib", "compute_capability", "numa"),
    *("domain", "mig", "placeable", "shared_memory", "processes", "problems"),
}


def parse(name: str) -> Found:
    read = nvidia_xml.parse if name.endswith(".xml") else nvidia_csv.parse
    return finish(read(samples.text(name)), pci=Path("/nowhere"), proc=Path("/nowhere"))


def codes(gpu: dict[str, Any]) -> list[str]:
    return [problem["code"] for problem in gpu["problems"]]


@pytest.mark.parametrize("name", [*samples.XML, *samples.CSV])
def test_every_figure_of_every_sample(name: str) -> None:
    found, expected = parse(name), samples.expected(name)
    assert found.error is None
    assert (found.source, found.driver, found.cuda) == (expected["source"], expected["driver"], expected["cuda"])
    whole = [gpu for gpu in found.gpus if gpu["mig"] is None]
    units = [gpu for gpu in found.gpus if gpu["mig"] is not None]
    assert len(whole) == len(expected["cards"])
    for gpu, card in zip(whole, expected["cards"], strict=True):
        assert set(gpu) >= SHAPE
        bus = card["bus"] and card["bus"].lower().removeprefix("0000")
        assert (gpu["index"], gpu["bus"], gpu["name"], gpu["class"]) == (
            card["index"],
            bus,
            card["name"],
            card["class"],
        )
        assert (gpu["memory_total_mib"], gpu["memory_used_mib"]) == (card["memory_mib"], card["used_mib"])
        assert gpu["compute_capability"] == card["cc_if_derived"]
        assert set(codes(gpu)) >= {code for code in card["problems"] if not code.endswith("?")}
        assert set(codes(gpu)) <= {code.removesuffix("?") for code in card["problems"]}
        if "processes" in card:
            listed = [[p["pid"], p["type"], p["memory_mib"]] for p in gpu["processes"]]
            assert listed == card["processes"]
        if "mig" in card:
            assert gpu["mig_mode"] == card["mig"]
            assert not gpu["placeable"]
        own = [
            {"gi": u["mig"]["gi"], "ci": u["mig"]["ci"], "memory_mib": u["memory_total_mib"], "class": u["class"]}
            for u in units
            if u["mig"]["parent"] == gpu["uuid"]
        ]
        assert own == card.get("mig_devices", [])
    missing = expected.get("attached_gpus", len(whole)) - len(whole)
    assert [p["code"] for p in found.problems] == (["missing_card"] if missing else [])
    assert all(f"{missing} of" in p["text"] for p in found.problems)
    rack = expected.get("topology", "unknown") != "unknown"
    assert [domain["kind"] for domain in found.domains] == (["rack"] if rack else [])


def test_a_rack_is_named_by_cluster_and_clique_and_a_zero_cluster_names_none() -> None:
    found = parse("gb200x4_580.xml")
    cluster = "00000001-0000-0000-0000-000000000001"
    domain = {"id": f"{cluster}.2", "gpus": [0, 1, 2, 3], "kind": "rack", "cluster": cluster, "clique": 2}
    assert found.domains == [domain]
    assert {gpu["domain"] for gpu in found.gpus} == {domain["id"]}
    assert {gpu["domain"] for gpu in parse("h100x8_580.xml").gpus} == {None}


def test_a_rack_that_is_not_up_is_no_domain() -> None:
    text = samples.text("gb200x4_580.xml").replace("<state>Completed</state>", "<state>In Progress</state>", 1)
    found = nvidia_xml.parse(text)
    assert found.domains[0]["gpus"] == [1, 2, 3]
    assert [codes(gpu) for gpu in found.gpus] == [["fabric_not_ready"], [], [], []]


H100, T4, P100 = "h100x8_580.xml", "t4_515_busy.xml", "p100_510.xml"


@pytest.mark.parametrize(
    ("sample", "old", "new", "code", "placeable"),
    [
        (H100, "<dram_uncorrectable>0<", "<dram_uncorrectable>2<", "ecc_uncorrectable", False),
        (H100, "<sram_uncorrectable_parity>0<", "<sram_uncorrectable_parity>1<", "ecc_uncorrectable", False),
        (T4, "<sram_uncorrectable>0<", "<sram_uncorrectable>1<", "ecc_uncorrectable", False),
        (P100, r"<total>0</total>\s*</double_bit>", "<total>5</total></double_bit>", "ecc_uncorrectable", False),
        (H100, "<remapped_row_pending>No<", "<remapped_row_pending>Yes<", "row_remap_pending", True),
        (H100, "<remapped_row_failure>No<", "<remapped_row_failure>Yes<", "row_remap_failed", False),
        (H100, "<remapped_row_unc>0<", "<remapped_row_unc>512<", "row_remap_limit", True),
        (H100, "<gpu_recovery_action>None<", "<gpu_recovery_action>Reset<", "reset_required", False),
        (H100, "<tpc_repair_pending>No<", "<tpc_repair_pending>Yes<", "repair_pending", True),
        (H100, "<sram_threshold_exceeded>No<", "<sram_threshold_exceeded>Yes<", "sram_threshold", True),
        (H100, "_hw_slowdown>Not Active<", "_hw_slowdown>Active<", "hw_slowdown", True),
        (H100, "_hw_thermal_slowdown>Not Active<", "_hw_thermal_slowdown>Active<", "hw_thermal", True),
        (T4, "_hw_power_brake_slowdown>Not Active<", "_hw_power_brake_slowdown>Active<", "power_brake", True),
        (H100, "<pending_mig>Disabled<", "<pending_mig>Enabled<", "mig_pending", True),
        (H100, "<status>Success<", "<status>Insufficient Resources<", "fabric_not_ready", True),
        (P100, "<pending_blacklist>No<", "<pending_blacklist>Yes<", "retired_pages_pending", True),
        (P100, "<pending_retirement>No<", "<pending_retirement>Yes<", "retired_pages_pending", True),
        (P100, "<retired_count>0<", "<retired_count>63<", "retired_pages_limit", False),
        ("a100_mig_535.xml", "<reset_required>No<", "<reset_required>Yes<", "reset_required", False),
        ("gb200x4_580.xml", "<unrepairable_memory>No<", "<unrepairable_memory>Yes<", "unrepairable_memory", False),
        ("b200x8_580.xml", "<summary>Healthy<", "<summary>Unhealthy<", "fabric_not_ready", True),
        (H100, "<gpu_temp>29 C<", "<gpu_temp>GPU is lost<", "lost", False),
        (H100, "<gpu_temp>29 C<", "<gpu_temp>GPU requires reset<", "reset_required", False),
        (H100, r"<uuid>GPU-[^<]*<", "<uuid>Unknown Error<", "not_answering", False),
        (H100, r"<uuid>GPU-[^<]*<", "<uuid>N/A<", "not_answering", False),
        (H100, r"<uuid>GPU-[^<]*<", "<uuid>0,1,2<", "not_answering", False),
        (H100, "<total>81559 MiB<", "<total>Insufficient Permissions<", "no_permission", False),
    ],
)
def test_one_changed_field_is_one_problem_of_one_card(
    sample: str, old: str, new: str, code: str, placeable: bool
) -> None:
    text, count = re.subn(old, new, samples.text(sample), count=1)
    assert count == 1
    first, *others = [gpu for gpu in nvidia_xml.parse(text).gpus if gpu["mig"] is None]
    assert codes(first) == [code]
    assert first["placeable"] is placeable
    assert first["bus"]  # a sick card stays in the list with what is known
    assert all(codes(gpu) == [] for gpu in others)


def test_errors_of_the_cards_whole_life_are_history() -> None:
    text = re.sub(r"(<aggregate>.*?<dram_uncorrectable>)0", r"\g<1>999", samples.text(H100), count=1, flags=re.DOTALL)
    first = nvidia_xml.parse(text).gpus[0]
    assert first["health"]["ecc_aggregate_uncorrectable"] == 999
    assert (codes(first), first["placeable"]) == ([], True)


def test_unified_memory_is_the_machines_and_is_marked() -> None:
    host = HostMemory(total_mib=124_610, available_mib=100_000)
    (thor,) = nvidia_csv.parse(samples.text("thor_13.csv"), host=host).gpus
    assert (thor["memory_total_mib"], thor["memory_used_mib"], thor["shared_memory"]) == (124_610, 24_610, True)
    text = re.sub(r"<(total|used)>\d+ MiB<", r"<\1>N/A<", samples.text("l40s_595.xml")).replace(
        "NVIDIA L40S", "NVIDIA GB10"
    )
    (gb10,) = nvidia_xml.parse(text, host=host).gpus
    assert (gb10["class"], gb10["memory_total_mib"], gb10["shared_memory"]) == ("gb10-unified", 124_610, True)
    text = re.sub(r"<(total|used)>\d+ MiB<", r"<\1>N/A<", samples.text("l40s_595.xml"))
    (l40s,) = nvidia_xml.parse(text, host=host).gpus  # a card with memory of its own never gets the machine's
    assert (l40s["memory_total_mib"], l40s["memory_used_mib"], l40s["shared_memory"]) == (None, None, False)


def test_one_process_listed_for_compute_and_graphics_is_one() -> None:
    info = (
        "<process_info><pid>100</pid><type>{}</type><process_name>/opt/app --key s3cret</process_name>"
        "<used_memory>{}</used_memory></process_info>"
    )
    text = samples.text("l40s_595.xml")
    text = re.sub(
        r"<processes>\s*</processes>",
        f"<processes>{info.format('G', '20 MiB')}{info.format('C', '20 MiB')}</processes>",
        text,
    )
    (gpu,) = nvidia_xml.parse(text).gpus
    assert gpu["processes"] == [{"pid": 100, "name": "/opt/app", "user": None, "memory_mib": 20, "type": "C+G"}]


def test_a_driver_that_prints_its_no_value_as_a_number_is_not_believed() -> None:
    text = samples.text("t4_515_busy.xml").replace("1005 MiB", "17592186044415 MiB")
    (gpu,) = nvidia_xml.parse(text).gpus
    assert [process["memory_mib"] for process in gpu["processes"]] == [22, None]


def test_names_of_processes_that_are_no_xml_are_read_anyway() -> None:
    text = samples.text("t4_515_busy.xml").replace(">python<", ">a<b&c;\x01 & d<")
    (gpu,) = nvidia_xml.parse(text).gpus
    assert [process["name"] for process in gpu["processes"]] == ["/usr/lib/xorg/Xorg", "a<b&c;�"]


def test_lines_around_the_report_are_no_part_of_it() -> None:
    text = "WARNING: infoROM is corrupted at gpu 0000:06:00.0\n" + samples.text("l40s_595.xml") + "\nWARNING: again\n"
    assert nvidia_xml.parse(text) == nvidia_xml.parse(samples.text("l40s_595.xml"))


@pytest.mark.parametrize(
    "declaration",
    [
        '<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;"><!ENTITY c "&b;&b;&b;">]>',
        '<!DOCTYPE nvidia_smi_log [<!ENTITY a SYSTEM "file:///etc/hostname">]>',
        '<!DOCTYPE nvidia_smi_log [<!ENTITY % a SYSTEM "http://127.0.0.1:1/x.dtd"> %a;]>',
    ],
)
def test_entities_are_refused(declaration: str) -> None:
    text = re.sub(r"<!DOCTYPE[^>]*>", declaration, samples.text("l40s_595.xml")).replace("NVIDIA L40S", "&a;")
    found = nvidia_xml.parse(text)
    assert (found.source, found.gpus) == ("unavailable", [])
    assert "entities" in (found.error or "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no complete"),
        ("No devices were found\n", "no complete"),
        (samples.text("l40s_595.xml")[:9000], "no complete"),
        ("<nvidia_smi_log>" + "<a>" * 50 + "</a>" * 50 + "</nvidia_smi_log>", "deeper"),
        ("<nvidia_smi_log><gpu></nvidia_smi_log>", "mismatched"),
        ("<nvidia_smi_log>" + " " * (8 << 20) + "</nvidia_smi_log>", "at most"),
    ],
    ids=["empty", "words", "cut", "deep", "broken", "huge"],
)
def test_what_is_no_report_is_an_error_with_its_reason(text: str, reason: str) -> None:
    found = nvidia_xml.parse(text)
    assert found == Found(source="unavailable", error=found.error)
    assert (found.error or "").startswith("cannot read nvidia-smi's XML: ")
    assert reason in (found.error or "")


def test_an_external_dtd_is_not_fetched() -> None:
    text = samples.text("l40s_595.xml").replace('"nvsmi_device_v13.dtd"', '"http://127.0.0.1:1/v13.dtd"')
    assert nvidia_xml.parse(text).gpus == nvidia_xml.parse(samples.text("l40s_595.xml")).gpus


def test_found_can_be_made_with_what_earlier_callers_gave() -> None:
    assert [field.name for field in dataclasses.fields(Found)][:5] == ["source", "gpus", "driver", "cuda", "error"]
    assert Found(source="none").gpus == []
