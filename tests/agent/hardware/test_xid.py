"""Xid errors out of the kernel log: NVIDIA's action per code, the gravest of each card, a log that can't be read."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_client.hardware import xid
from tests.agent.hardware.samples import DATA

ROWS = list(csv.DictReader((DATA.parent / "xid.csv").read_text(encoding="utf-8").splitlines()))
LINE = "4,1234,56789,-;NVRM: Xid (PCI:0000:61:00): {}, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["xid"])
def test_each_code_of_the_catalogue(row: dict[str, str]) -> None:
    found = xid.parse([LINE.format(row["xid"])])
    if row["class"] in ("application", "ignore"):
        assert found == {}
        return
    judged = xid.judge(found["0000:61:00.0"], None)
    assert judged["severity"] == ("unplaceable" if row["class"] == "fatal" else "warning")
    assert f"Xid {row['xid']}" in judged["text"]


def test_the_gravest_of_each_card_then_the_latest() -> None:
    lines = [LINE.format(79), LINE.format(154), LINE.format(119), LINE.format(154).replace(":61:", ":62:"), "usb 1-1"]
    found = xid.parse(lines)
    assert {bus: each.code for bus, each in found.items()} == {"0000:61:00.0": 119, "0000:62:00.0": 154}


def test_an_unknown_code_is_a_warning() -> None:
    judged = xid.judge(xid.parse([LINE.format(999)])["0000:61:00.0"], None)
    assert judged["severity"] == "warning"


@pytest.mark.parametrize(("action", "severity"), [(None, "unplaceable"), (0, "warning"), ("None", "warning")])
def test_the_driver_that_asks_for_nothing_is_newer_than_the_log(action: int | str | None, severity: str) -> None:
    assert xid.judge(xid.Xid(bus="0000:61:00.0", code=119, text=""), action)["severity"] == severity
    assert xid.judge(xid.Xid(bus="0000:61:00.0", code=119, text=""), 1)["severity"] == "unplaceable"


def test_a_long_domain_and_no_words_after_the_code() -> None:
    (found,) = xid.parse(["NVRM: Xid (PCI:00000008:06:00): 48"]).values()
    assert (found.bus, found.code, found.text) == ("0008:06:00.0", 48, "")


def test_only_cards_that_are_there_get_it() -> None:
    gpus = [{"bus": "0000:61:00.0", "mig": None, "health": {}}, {"bus": "0000:61:00.0", "mig": {"profile": "1g.10gb"}}]
    assert set(xid.attach(gpus, xid.parse([LINE.format(79)]))) == {"0000:61:00.0"}
    assert xid.attach([{"bus": None}], xid.parse([LINE.format(79)])) == {}


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert xid.read(tmp_path / "kmsg") == []
    (tmp_path / "kmsg").write_bytes(b"\xff\n" + LINE.format(79).encode())
    assert "0000:61:00.0" in xid.parse(xid.read(tmp_path / "kmsg"))


@given(st.lists(st.text() | st.from_regex(xid._LINE)))
def test_any_lines(lines: list[str]) -> None:
    for bus, each in xid.parse(lines).items():
        assert each.bus == bus
        assert each.code not in xid.QUIET
