"""Any output at all: no exception, no invented number, nothing placeable without a UUID or with a reason against it."""

import json
import re
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent_client.hardware import nvidia_csv, nvidia_list, nvidia_xml
from agent_client.hardware.cards import Found, HostMemory
from agent_client.hardware.finish import finish
from agent_client.hardware.nvidia_failures import classify, sentence, unreadable_cards
from agent_client.hardware.problems import PROBLEMS
from tests.agent.hardware import samples
from tests.support.examples import examples

relaxed = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
REPORTS = [samples.text(name) for name in ("a100_mig_535.xml", "t4_515_busy.xml", "p100_510.xml", "l40s_595.xml")]
REPORTS += [samples.text("gb200x4_580.xml")]
THREE = "".join(
    f"{n}, NVIDIA L40S, GPU-{n}{n}, 00000000:{n}1:00.0, 580.1, 46068, 3{n}, 8.9, Enabled, 4, 5\n" for n in (0, 2, 5)
)
HEADER = (
    "index, name, uuid, pci.bus_id, driver_version, memory.total, memory.used, compute_cap, mig.mode.current, "
    "ecc.errors.uncorrected.volatile.total, retired_pages.double_bit.count\n"
)
TABLES = [*(samples.text(name) for name in samples.CSV), HEADER + THREE]
LIST = samples.text("mig_list.txt")

NO_VALUES = st.sampled_from(
    [
        *("N/A", "[N/A]", "Not Supported", "Unknown Error", "Insufficient Permissions", "GPU is lost", "ERR!", ""),
        *("None", "[GPU requires reset]", "Requested functionality has been deprecated", "Not Found"),
        *("Enabled", "Yes", "Active"),
    ]
)
ODD_NUMBERS = st.sampled_from(
    [
        "-1",
        "1.5 MiB",
        "17592186044415 MiB",
        "18446744073709551615",
        "0x10",
        "1e5",
        "٣٣",
        "²",
        "7 KiB",
        "0 MiB",
        "9" * 40,
    ]
)
VALUES = st.one_of(NO_VALUES, ODD_NUMBERS, st.integers(0, 10**6).map(lambda n: f"{n} MiB"), st.text(max_size=12))


@st.composite
def changed(draw: st.DrawFn, texts: list[str], cell: str) -> str:
    """A real output with some cells replaced, a piece cut out or put in."""
    text = draw(st.sampled_from(texts))
    cells = list(re.finditer(cell, text))
    for at in sorted(draw(st.sets(st.integers(0, len(cells) - 1), max_size=8)), reverse=True):
        start, end = cells[at].span(1)
        text = text[:start] + draw(VALUES) + text[end:]
    if draw(st.booleans()):
        start = draw(st.integers(0, len(text)))
        text = text[:start] + draw(st.text(max_size=5)) + text[start + draw(st.sampled_from([0, 0, 1, 40, 4000])) :]
    return text


XML = changed(REPORTS, r">([^<>\n]*)</")
CSV = changed(TABLES, r"(?:^|, )([^,\n]*)")


def numbers(text: str) -> set[int]:
    return {int(word) for word in re.findall(r"[0-9]+", text)}


def is_sum(value: int, there: set[int]) -> bool:
    """One number of the text or two or three together: SRAM in two parts and DRAM, single and double bit."""
    ones = {0, *there}
    if value in ones:
        return True
    small = [number for number in ones if number <= value]
    return any(value - a - b in ones for a in small for b in small)


def check_honest(found: Found, text: str) -> None:
    """Each figure of the answer stands in the text; places in the list and sums of two counters are the exceptions."""
    there = numbers(text)
    json.dumps(found.gpus)
    assert (found.error is None) == (found.source == "nvidia-smi")
    assert {each["code"] for each in found.problems} <= {"missing_card"}
    indexes = [gpu["index"] for gpu in found.gpus]
    assert len(set(indexes)) == len(indexes)
    for gpu in found.gpus:
        figures = [gpu["memory_total_mib"], gpu["memory_used_mib"]]
        figures += [each for process in gpu["processes"] for each in (process["pid"], process["memory_mib"])]
        if gpu["mig"]:
            figures += [gpu["mig"]["gi"], gpu["mig"]["ci"]]
        assert {figure for figure in figures if figure is not None} <= there
        assert gpu["memory_total_mib"] != 0
        assert gpu["uuid"] is None or gpu["uuid"] in text
        assert gpu["bus"] is None or gpu["bus"][-7:] in text.lower()
        counts = [value for value in gpu["health"].values() if isinstance(value, int)]
        assert all(is_sum(value, there) for value in counts)
        check_shown(gpu)


def check_shown(gpu: dict[str, Any]) -> None:
    codes = {each["code"] for each in gpu["problems"]}
    assert codes <= set(PROBLEMS)
    assert all(each["text"] and each["severity"] in ("unplaceable", "warning") for each in gpu["problems"])
    if gpu["placeable"]:
        assert gpu["uuid"]
        assert all(each["severity"] == "warning" for each in gpu["problems"])
    assert gpu["class"] is None or re.fullmatch(r"[a-z0-9.+-]{1,100}", gpu["class"])
    assert gpu["bus"] is None or re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", gpu["bus"])


@relaxed
@given(XML)
def test_any_change_to_a_report_is_survived_and_nothing_is_invented(text: str) -> None:
    found = nvidia_xml.parse(text)
    check_honest(found, text)
    assert nvidia_xml.parse(text) == found
    finished = finish(found)
    assert len(finished.gpus) == len(found.gpus)
    for gpu in finished.gpus:
        check_shown(gpu)


@relaxed
@given(CSV)
def test_any_change_to_a_table_is_survived_and_nothing_is_invented(text: str) -> None:
    found = nvidia_csv.parse(text)
    check_honest(found, text)
    for gpu in finish(found).gpus:
        check_shown(gpu)


@relaxed
@given(st.lists(st.lists(VALUES, min_size=20, max_size=24), max_size=4), st.sampled_from(["FULL", "MORE", "BASIC"]))
def test_rows_of_any_cells(rows: list[list[str]], kind: str) -> None:
    names = getattr(nvidia_csv, kind)
    text = "\n".join(", ".join([str(number), *row][: len(names)]) for number, row in enumerate(rows))
    check_honest(nvidia_csv.parse(text, names), text)


@relaxed
@given(st.text(max_size=200) | changed([LIST], r"([0-9A-Za-z.-]+)"))
@example("GPU 0: x (UUID: GPU-1)\n  MIG a Device 0: (UUID: MIG-1)\n  MIG b Device 0: (UUID: MIG-2)\n")
@example("GPU ٣: x (UUID: GPU-1)")
def test_any_list_is_survived_and_its_uuids_stand_in_it(text: str) -> None:
    cards = nvidia_list.parse(text)
    for card in cards:
        assert card.uuid in text
        assert card.index in numbers(text)
        for mig in card.migs:
            assert mig.uuid in text
            assert (mig.profile or "") in text
            assert mig.device in numbers(text)
    report = nvidia_xml.parse(REPORTS[0], listed=cards)
    assert len(report.gpus) == 5


@relaxed
@given(changed([LIST], r"([0-9A-Za-z.-]+)"), st.sampled_from(REPORTS))
def test_any_list_goes_with_any_report(listing: str, text: str) -> None:
    uuid = "GPU-" + text.partition("<uuid>GPU-")[2].partition("<")[0]
    listing = listing.replace("GPU-5c1d2e3f-aaaa-bbbb-cccc-000000000001", uuid)
    check_honest(nvidia_xml.parse(text, listed=nvidia_list.parse(listing)), text + listing)


@relaxed
@given(st.text(max_size=300), st.none() | st.integers(-300, 300))
@example("Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.", 15)
@example("Unable to determine the device handle for GPU٣: 0000:02:00.0: x", 0)
@example("Unable to determine the device handle for GPU 00000000:02:00.0\n" * 3, None)
def test_any_failure_has_a_cause_a_hint_and_at_most_the_cards_it_names(text: str, code: int | None) -> None:
    failure = classify(code, text)
    assert failure.cause
    assert failure.hint
    assert sentence("nvidia-smi", code, text).startswith("cannot read GPUs from nvidia-smi: ")
    cards = unreadable_cards(text)
    assert len({gpu["bus"] for gpu in cards}) == len(cards)
    for gpu in cards:
        assert not gpu["placeable"]
        assert gpu["bus"][-7:] in text.lower()
        assert (gpu["memory_total_mib"], gpu["memory_used_mib"], gpu["uuid"]) == (None, None, None)


@relaxed
@given(st.text(max_size=200) | changed(["GPU-1, 12, /opt/python, 500\nMIG-2, 13, [Not Found], [N/A]\n"], r"([^,\n]+)"))
def test_any_list_of_processes(text: str) -> None:
    for uuid, processes in nvidia_csv.parse_apps(text).items():
        assert uuid in text
        for process in processes:
            assert {process.pid, process.memory_mib} - {None} <= numbers(text)
            assert process.name is None or not re.search(r"\s", process.name)


@relaxed
@given(XML, st.integers(1, 10**6), st.none() | st.integers(0, 10**6))
def test_only_a_chip_without_memory_of_its_own_gets_the_machines(text: str, total: int, available: int | None) -> None:
    host = HostMemory(total_mib=total, available_mib=available)
    for gpu, alone in zip(nvidia_xml.parse(text, host=host).gpus, nvidia_xml.parse(text).gpus, strict=True):
        if not gpu["shared_memory"]:
            assert gpu == alone
        elif alone["memory_total_mib"] is None:
            assert gpu["memory_total_mib"] == total
