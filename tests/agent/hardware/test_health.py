"""Each rule at its limit and one below it, who judges what, and a site's own severities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_client.hardware.health import PROBLEMS, Figures, judge, judge_use, placeable, settle


def name_of(value: dict[str, object]) -> str:
    """The same in every process: sets have no order."""
    return str({key: sorted(each) if isinstance(each, frozenset) else each for key, each in value.items()})


def codes(figures: Figures, **severities: str) -> dict[str, str]:
    return {each["code"]: each["severity"] for each in judge(figures, severities=severities)}


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"lost": True}, {"lost": "unplaceable"}),
        ({"reset_required": True}, {"reset_required": "unplaceable"}),
        ({"reset_required": False}, {}),
        ({"recovery_action": 0}, {}),
        ({"recovery_action": "None"}, {}),
        ({"recovery_action": 1}, {"reset_required": "unplaceable"}),
        ({"recovery_action": 99}, {"reset_required": "unplaceable"}),
        ({"recovery_action": "Drain and Reset"}, {"reset_required": "unplaceable"}),
        ({"ecc_volatile_uncorrectable": 1}, {"ecc_uncorrectable": "unplaceable"}),
        ({"ecc_volatile_uncorrectable": 0, "ecc_aggregate_uncorrectable": 10**6}, {}),
        ({"remap_failed": True}, {"row_remap_failed": "unplaceable"}),
        ({"remap_pending": True}, {"row_remap_pending": "warning"}),
        ({"remapped_uncorrectable": 511}, {}),
        ({"remapped_uncorrectable": 512}, {"row_remap_limit": "warning"}),
        ({"unrepairable_memory": True}, {"unrepairable_memory": "unplaceable"}),
        ({"repair_pending": True}, {"repair_pending": "warning"}),
        ({"sram_threshold": True}, {"sram_threshold": "warning"}),
        ({"retired_pages": 62}, {}),
        ({"retired_pages": 63}, {"retired_pages_limit": "unplaceable"}),
        ({"retired_double_bit": 16}, {}),  # how many of them are new is not known
        ({"retired_double_bit": 16, "retired_double_bit_this_week": 1}, {}),
        ({"retired_double_bit": 15, "retired_double_bit_this_week": 2}, {}),
        ({"retired_double_bit": 16, "retired_double_bit_this_week": 2}, {"retired_pages_limit": "unplaceable"}),
        ({"retired_pending": True}, {"retired_pages_pending": "warning"}),
        ({"throttled": frozenset({"hw_slowdown", "hw_thermal"})}, {"hw_slowdown": "warning", "hw_thermal": "warning"}),
        ({"throttled": frozenset({"power_brake", "sw_power_cap", "idle"})}, {"power_brake": "warning"}),
        ({"fabric_state": "Completed", "fabric_status": "Success", "fabric_health": "Healthy"}, {}),
        ({"fabric_state": "In Progress"}, {"fabric_not_ready": "warning"}),
        ({"fabric_state": "Completed", "fabric_status": "Insufficient Resources"}, {"fabric_not_ready": "warning"}),
        ({"fabric_state": "Completed", "fabric_health": "Unhealthy"}, {"fabric_not_ready": "warning"}),
        ({"mig_current": "Disabled", "mig_pending": "Enabled"}, {"mig_pending": "warning"}),
        ({"mig_current": "Enabled", "mig_pending": "Enabled"}, {}),
        ({}, {}),
    ],
    ids=name_of,
)
def test_each_figure_at_its_limit(figures: dict[str, object], expected: dict[str, str]) -> None:
    assert codes(Figures(**figures)) == expected  # type: ignore[arg-type]


def test_a_site_raises_lowers_and_drops() -> None:
    figures = Figures(remap_pending=True, remap_failed=True, retired_pending=True)
    found = judge(
        figures,
        severities={
            "row_remap_pending": "unplaceable",
            "row_remap_failed": "warning",
            "retired_pages_pending": "ignore",
        },
    )
    assert [(each["code"], each["severity"]) for each in found] == [
        ("row_remap_pending", "unplaceable"),
        ("row_remap_failed", "warning"),
    ]
    assert not placeable(found)
    assert placeable(judge(figures, severities={"row_remap_failed": "warning"}))
    assert codes(figures, row_remap_failed="nonsense")["row_remap_failed"] == "unplaceable"


def test_every_code_has_its_source_and_a_hint() -> None:
    for code, rule in PROBLEMS.items():
        assert rule.severity in ("unplaceable", "warning"), code
        assert rule.source, code
        assert rule.hint, code


def test_texts_tell_the_number() -> None:
    (found,) = judge(Figures(ecc_volatile_uncorrectable=7))
    assert "7 uncorrectable" in found["text"]
    assert "reset" in found["hint"]


def process(pid: int, kind: str | None, memory: int | None, name: str = "python") -> dict[str, object]:
    return {"pid": pid, "type": kind, "name": name, "memory_mib": memory, "user": None}


@pytest.mark.parametrize(
    ("processes", "used", "owned", "expected"),
    [
        ([process(5, "C", 70000)], 70500, set(), ["foreign_process"]),
        ([process(5, "C", 70000)], 70500, {5}, []),
        ([process(5, "C", None)], 70500, set(), ["foreign_process"]),
        ([process(5, None, None)], None, set(), ["foreign_process"]),
        ([process(5, "M+C", 10)], 20, set(), ["foreign_process"]),
        ([process(5, "G", 99)], 99, set(), []),
        ([process(5, "G", 60), process(6, "G", 40)], 100, set(), ["foreign_process"]),
        ([process(5, "G", 22), process(6, "C", 1005)], 1032, {6}, []),
        ([], 1023, set(), []),
        ([], 1024, set(), ["memory_held"]),
        ([process(5, "C", 40000)], 70000, {5}, ["memory_held"]),
        ([process(5, "C", None)], 70000, {5}, []),
        ([], None, set(), []),
    ],
)
def test_who_else_is_on_the_card(
    processes: list[dict[str, object]], used: int | None, owned: set[int], expected: list[str]
) -> None:
    assert [each["code"] for each in judge_use(processes, used, owned_pids=owned)] == expected


def test_the_explanation_names_process_pid_and_memory() -> None:
    (found,) = judge_use([process(i, "C", 100 * i, f"p{i}") for i in range(1, 6)], 2000)
    assert (
        found["text"]
        == "used by p5 (pid 5, 500 MiB), p4 (pid 4, 400 MiB), p3 (pid 3, 300 MiB) and 2 more; 2000 MiB are used"
    )


COUNTS = st.none() | st.integers(0, 1000)
FLAGS = st.none() | st.booleans()
WORDS = st.none() | st.text(max_size=10)
FIGURES = st.builds(
    Figures,
    lost=FLAGS,
    reset_required=FLAGS,
    recovery_action=st.none() | st.integers(-3, 20) | st.text(max_size=9),
    ecc_volatile_uncorrectable=COUNTS,
    ecc_aggregate_uncorrectable=COUNTS,
    remap_pending=FLAGS,
    remap_failed=FLAGS,
    remapped_uncorrectable=COUNTS,
    retired_pages=COUNTS,
    retired_double_bit=COUNTS,
    retired_double_bit_this_week=COUNTS,
    retired_pending=FLAGS,
    throttled=st.frozensets(st.text(max_size=9)),
    fabric_state=WORDS,
    fabric_status=WORDS,
    fabric_health=WORDS,
    mig_current=WORDS,
    mig_pending=WORDS,
)


@given(
    FIGURES, st.dictionaries(st.sampled_from(sorted(PROBLEMS)), st.sampled_from(["unplaceable", "warning", "ignore"]))
)
def test_any_figures_give_known_codes_in_order(figures: Figures, severities: dict[str, str]) -> None:
    found = judge(figures, severities=severities)
    assert {each["code"] for each in found} <= set(PROBLEMS)
    assert all(each["text"] and each["severity"] in ("unplaceable", "warning") for each in found)
    assert settle(found, severities) == found
    order = [each["severity"] for each in found]
    assert order == sorted(order, key=lambda severity: severity != "unplaceable")
    if figures.lost and severities.get("lost", "unplaceable") == "unplaceable":
        assert not placeable(found)
