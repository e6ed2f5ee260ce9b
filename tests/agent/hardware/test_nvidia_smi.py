"""Running it: a fake nvidia-smi, written as a shell script, that answers, fails, lies, hangs or prints without end."""

import os
import signal
import time
from pathlib import Path

import pytest

from agent_client.hardware import DiscoveryOptions, discover, nvidia_smi, program
from agent_client.hardware.nvidia_failures import classify, sentence
from tests.agent.hardware import samples

DEADLINE = 5.0
LISTING = "GPU 0: NVIDIA L40S (UUID: GPU-a)\nGPU 2: NVIDIA L40S (UUID: GPU-c)\n"


class Fake:
    """`answers`: shell pattern over the arguments → shell code; every call is written down."""

    def __init__(self, folder: Path, **answers: str) -> None:
        self.path, self._log = folder / "nvidia-smi", folder / "calls"
        names = {"xml": "-q\\ -x", "some_xml": "-q\\ -x\\ -i*", "list": "-L", "csv": "--query-gpu=*", "any": "*"}
        names["apps"] = "--query-compute-apps=*"
        cases = "".join(f"{names[name]}) {code};;\n" for name, code in answers.items())
        script = (
            f'#!/bin/sh\necho "$*" >> {self._log}\ncase "$*" in\n{cases}*) echo "not expected: $*"; exit 99;;\nesac\n'
        )
        self.path.write_text(script)
        self.path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def read(self, deadline: float = DEADLINE) -> nvidia_smi.Found:
        return nvidia_smi.read(str(self.path), deadline_seconds=deadline)


def printing(folder: Path, text: str, code: int = 0) -> str:
    file = folder / f"answer-{len(list(folder.iterdir()))}"
    file.write_text(text)
    return f"cat {file}; exit {code}"


def sample(name: str) -> str:
    return f"cat {samples.DATA / name}"


KINDS = {
    "driver_not_loaded": "driver_not_loaded",
    "mismatch": "mismatch",
    "mismatch_old": "mismatch",
    "unknown_error": "unknown_error",
    "no_devices": "no_devices",
    "no_devices_0": "no_devices",
    "no_library": "no_library",
    "insufficient_permissions": "no_permission",
    "lost": "lost",
    "lost_new": "not_answering",
    "field_invalid": "field_invalid",
    "gsp_timeout_hang": "hanging",
}
UNREADABLE = {"lost": ("0000:02:00.0", "lost"), "lost_new": ("0000:07:00.0", "not_answering")}


@pytest.mark.parametrize("row", samples.FAILURES, ids=lambda row: row["case"])
def test_each_failure_is_told_with_cause_and_hint(row: dict[str, str], tmp_path: Path) -> None:
    hangs = row["exit_code"] is None
    code = "sleep 60" if hangs else printing(tmp_path, row["output"], int(row["exit_code"]))
    fake = Fake(tmp_path, any=code)
    started = time.monotonic()
    found = fake.read(0.3 if hangs else DEADLINE)
    assert time.monotonic() - started < DEADLINE
    assert (found.source, found.driver, found.cuda) == ("unavailable", None, None)
    assert found.error is not None
    assert found.error.startswith(f"cannot read GPUs from {fake.path}: ")
    kind = classify(None if hangs else int(row["exit_code"]), row["output"])
    assert kind.code == KINDS[row["case"]]
    assert found.error.endswith(kind.hint)
    assert kind.cause in found.error
    assert " ".join(row["output"].split())[:100] in found.error
    shown = [(gpu["bus"], gpu["problems"][0]["code"], gpu["placeable"]) for gpu in found.gpus]
    assert shown == ([(*UNREADABLE[row["case"]], False)] if row["case"] in UNREADABLE else [])
    assert len(fake.calls) <= 4


def test_every_failure_of_the_table_has_a_test() -> None:
    assert {row["case"] for row in samples.FAILURES} == set(KINDS)


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (9, "", "driver_not_loaded"),
        (12, "", "no_library"),
        (4, "", "no_permission"),
        (15, "", "lost"),
        (18, "", "mismatch"),
        (255, "Failed to initialize NVML: Driver/library version mismatch", "mismatch"),  # text before code
        (0, "Failed to initialize NVML: Unknown Error", "unknown_error"),
        (77, "surprise", "other"),
        (127, "no such file", "not_run"),
        (-11, "", "crashed"),
        (None, "it printed more than 16 MiB", "endless"),
        (None, "it did not answer within 5 s", "hanging"),
    ],
)
def test_text_goes_before_the_code(code: int | None, text: str, kind: str) -> None:
    assert classify(code, text).code == kind
    assert sentence("nvidia-smi", code, text).startswith("cannot read GPUs from nvidia-smi: ")


def test_what_is_no_text_is_not_quoted() -> None:
    assert sentence("smi", 0, "\x00\ufffd\x1b[2J" * 50) == (
        "cannot read GPUs from smi: the answer is not understood (no text, exit code 0); run it by hand"
    )
    assert "(it did not answer within 5 s)" in sentence("smi", None, "it did not answer within 5 s")
    assert "it crashed (signal 11)" in sentence("smi", -11, "")


def test_one_call_is_enough_for_a_plain_report(tmp_path: Path) -> None:
    fake = Fake(tmp_path, xml=sample("h100x8_580.xml"))
    found = fake.read()
    assert (found.source, found.driver, found.cuda, len(found.gpus)) == ("nvidia-smi", "580.105.08", "13.0", 8)
    assert fake.calls == ["-q -x"]


def test_the_list_is_asked_for_mig_devices_only(tmp_path: Path) -> None:
    parent = "GPU-c7ac1491-def8-8334-e647-cb8f74e69a5d"
    text = f"GPU 3: NVIDIA A100-SXM4-80GB (UUID: {parent})\n  MIG 1g.20gb Device  1: (UUID: MIG-b)\n"
    fake = Fake(tmp_path, xml=sample("a100_mig_535.xml"), list=printing(tmp_path, text))
    found = fake.read()
    assert fake.calls == ["-q -x", "-L"]
    assert [gpu["uuid"] for gpu in found.gpus] == [parent, None, "MIG-b", None, None]
    assert [gpu["index"] for gpu in found.gpus] == [3, 4, 5, 6, 7]  # -L knows the card's number


def test_a_name_without_known_capability_is_asked_for(tmp_path: Path) -> None:
    text = samples.text("l40s_595.xml").replace("NVIDIA L40S", "NVIDIA R200")
    uuid = "GPU-" + text.partition("<uuid>GPU-")[2].partition("<")[0]
    fake = Fake(tmp_path, xml=printing(tmp_path, text), csv=printing(tmp_path, f"{uuid}, 13.0\n"))
    (gpu,) = fake.read().gpus
    assert gpu["compute_capability"] == "13.0"
    fake = Fake(tmp_path, xml=printing(tmp_path, text), csv="exit 2")
    (gpu,) = fake.read().gpus
    assert gpu["compute_capability"] is None


@pytest.mark.parametrize("xml", ["exit 2", "echo '<nvidia_smi_log><gpu>'", "echo hello", "true"])
def test_csv_where_xml_fails(xml: str, tmp_path: Path) -> None:
    row = "0, Tesla T4, GPU-1, 00000000:00:1E.0, 450.80, 15109, 3, [N/A], 7.5, [N/A], [N/A]" + ", [N/A]" * 12
    apps = printing(tmp_path, "GPU-1, 41, python, 900\n")
    fake = Fake(tmp_path, xml=xml, csv=printing(tmp_path, row + "\n"), apps=apps)
    found = fake.read()
    (gpu,) = found.gpus
    assert (found.source, found.driver, found.error) == ("nvidia-smi", "450.80", None)
    assert (gpu["class"], gpu["memory_total_mib"], gpu["processes"][0]["pid"]) == ("t4-16gb", 15109, 41)


def test_fewer_fields_where_the_driver_does_not_know_all(tmp_path: Path) -> None:
    refuse = 'Field "%s" is not a valid field to query.\\n'
    csv = (
        f"case \"$*\" in *gpu_recovery_action*) printf '{refuse}' gpu_recovery_action; exit 2;; "
        f"*compute_cap*) printf '{refuse}' compute_cap; exit 2;; "
        "*) echo '0, Tesla K80, GPU-1, 00000000:05:00.0, 418.1, 11441, 0';; esac"
    )
    fake = Fake(tmp_path, xml="exit 2", csv=csv, apps="exit 2")
    (gpu,) = fake.read().gpus
    assert (gpu["class"], gpu["memory_used_mib"], gpu["processes"]) == ("k80-12gb", 0, [])
    assert gpu["compute_capability"] == "3.7"
    assert sum(call.startswith("--query-gpu") for call in fake.calls) == 3


@pytest.mark.parametrize("name", [*samples.XML, *samples.CSV])
def test_a_program_that_answers_everything_alike_is_understood(name: str, tmp_path: Path) -> None:
    found = Fake(tmp_path, any=sample(name)).read()
    expected = samples.expected(name)
    assert (found.source, found.driver) == ("nvidia-smi", expected["driver"])
    assert [gpu["class"] for gpu in found.gpus if gpu["mig"] is None] == [card["class"] for card in expected["cards"]]


def test_a_lost_card_does_not_hide_the_others(tmp_path: Path) -> None:
    error = "Unable to determine the device handle for GPU1: 0000:41:00.0: Unknown Error\n"
    whole = samples.text("l40s_595.xml")
    card = whole[whole.index("<gpu ") : whole.index("</gpu>") + 6]
    uuid = "GPU-" + card.partition("<uuid>GPU-")[2].partition("<")[0]
    two = whole.replace(card, card.replace(uuid, "GPU-a") + card.replace(uuid, "GPU-c").replace(":30:", ":50:"))
    fake = Fake(
        tmp_path,
        some_xml=printing(tmp_path, two),
        xml=printing(tmp_path, error, 255),
        list=printing(tmp_path, LISTING.replace("GPU 2", error + "GPU 2")),
    )
    found = fake.read()
    assert fake.calls == ["-q -x", "-L", "-q -x -i GPU-a,GPU-c"]
    assert (found.source, found.error) == ("nvidia-smi", None)
    shown = [(gpu["index"], gpu["bus"], gpu["placeable"]) for gpu in found.gpus]
    assert shown == [(0, "0000:30:00.0", True), (2, "0000:50:00.0", True), (1, "0000:41:00.0", False)]
    assert found.gpus[2]["problems"][0]["code"] == "not_answering"


def test_an_error_line_beside_a_report_names_its_card(tmp_path: Path) -> None:
    line = "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system\n"
    fake = Fake(tmp_path, xml=printing(tmp_path, line + samples.text("l40s_595.xml"), 15))
    found = fake.read()
    assert [(gpu["bus"], gpu["placeable"]) for gpu in found.gpus] == [("0000:30:00.0", True), ("0000:02:00.0", False)]
    assert found.gpus[1]["problems"][0]["code"] == "lost"


@pytest.mark.parametrize("code", ["sleep 60", "trap '' TERM; sleep 60", "while :; do :; done", "(sleep 60) & sleep 60"])
def test_a_program_that_hangs_is_ended_with_its_children(code: str, tmp_path: Path) -> None:
    fake = Fake(tmp_path, any=f"echo $$ > {tmp_path}/pid; {code}")
    started = time.monotonic()
    found = fake.read(0.5)
    assert time.monotonic() - started < 3
    assert found.source == "unavailable"
    assert "did not answer within 0.5 s" in (found.error or "")
    assert len(fake.calls) == 1  # the others would hang too
    group = int((tmp_path / "pid").read_text())
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)  # killed children of the group are reaped by init, not by us
    pytest.fail("the group lives on")


def test_a_child_that_keeps_the_pipe_is_not_waited_for(tmp_path: Path) -> None:
    fake = Fake(tmp_path, xml=f"{sample('l40s_595.xml')}; sleep 5 & echo $! > {tmp_path}/pid")
    started = time.monotonic()
    assert len(fake.read().gpus) == 1
    assert time.monotonic() - started < 3
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_output_without_end_is_cut(tmp_path: Path) -> None:
    fake = Fake(tmp_path, any="exec yes")
    found = fake.read()
    assert found.source == "unavailable"
    assert len(found.error or "") < 1000


def test_all_runs_together_have_a_deadline(tmp_path: Path) -> None:
    fake = Fake(
        tmp_path, xml="sleep 0.4; exit 2", csv="sleep 0.4; echo 'Field \"x\" is not a valid field to query.'; exit 2"
    )
    started = time.monotonic()
    assert fake.read(0.5).source == "unavailable"
    assert time.monotonic() - started < 3


def test_no_second_run_joins_one_that_cannot_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, any="sleep 60")
    monkeypatch.setattr(program.os, "killpg", lambda *_: None)  # as in state D: the kill does nothing
    monkeypatch.setattr(program, "AFTER_KILL_SECONDS", 0.05)
    assert "did not answer" in (fake.read(0.2).error or "")
    assert "still hangs" in (fake.read(0.2).error or "")
    assert len(fake.calls) == 1
    stuck = program._abandoned[str(fake.path)]
    stuck.kill()
    stuck.wait()
    assert "did not answer" in (fake.read(0.2).error or "")
    assert len(fake.calls) == 2
    last = program._abandoned.pop(str(fake.path))
    last.kill()
    last.wait()


def test_a_program_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = nvidia_smi.read(str(tmp_path / "nothing"))
    assert (found.source, found.gpus) == ("unavailable", [])
    assert "can't be run" in (found.error or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_smi.read(None) == nvidia_smi.Found(source="none")


def test_the_inventory_says_missing_cards_foreign_use_and_the_sites_judgement(tmp_path: Path) -> None:
    fake = Fake(tmp_path, xml=sample("t4_515_busy.xml"))
    options = DiscoveryOptions(node_id="n", nvidia_smi=str(fake.path), ib_root=tmp_path, expect_gpus=2)
    data = discover(options).to_json()
    assert (data["source"], data["cuda"], data["error"]) == ("nvidia-smi", "11.7", None)
    assert [problem["code"] for problem in data["gpus"][0]["problems"]] == ["foreign_process"]
    assert [process["foreign"] for process in data["gpus"][0]["processes"]] == [False, True]
    assert any("python (pid 5762, 1005 MiB)" in warning for warning in data["warnings"])
    assert any("missing card: 2 GPUs are expected, 1 are there" in warning for warning in data["warnings"])
    ours = DiscoveryOptions(node_id="n", nvidia_smi=str(fake.path), ib_root=tmp_path, owned_pids=lambda: {5762})
    assert discover(ours).to_json()["gpus"][0]["problems"] == []
    strict = DiscoveryOptions(
        node_id="n", nvidia_smi=str(fake.path), ib_root=tmp_path, severities={"foreign_process": "unplaceable"}
    )
    assert discover(strict).to_json()["gpus"][0]["placeable"] is False


def test_the_fingerprint_ignores_numbers_that_change_all_the_time(tmp_path: Path) -> None:
    text = samples.text("t4_515_busy.xml")

    def fingerprint(text: str) -> str:
        fake = Fake(tmp_path, xml=printing(tmp_path, text))
        return discover(DiscoveryOptions(node_id="n", nvidia_smi=str(fake.path), ib_root=tmp_path)).fingerprint()

    assert fingerprint(text) == fingerprint(text.replace("1005 MiB", "2005 MiB").replace("1032 MiB", "2032 MiB"))
    assert fingerprint(text) != fingerprint(text.replace("<dram_uncorrectable>0<", "<dram_uncorrectable>1<"))


def test_unified_memory_comes_from_the_machine(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       127600748 kB\nMemFree: 1 kB\nMemAvailable:   100000000 kB\n")
    fake = Fake(tmp_path, any=sample("thor_13.csv"))
    (gpu,) = nvidia_smi.read(str(fake.path), meminfo=meminfo).gpus
    assert (gpu["memory_total_mib"], gpu["memory_used_mib"], gpu["shared_memory"]) == (124610, 26954, True)
    (gpu,) = nvidia_smi.read(str(fake.path), meminfo=tmp_path / "none").gpus
    assert (gpu["memory_total_mib"], gpu["memory_used_mib"], gpu["shared_memory"]) == (None, None, True)
