"""CSV with every field: figures, health, MIG devices, processes."""

import pytest

from agent_client.hardware import nvidia_csv, nvidia_list
from tests.agent.hardware import samples
from tests.agent.hardware.test_nvidia_samples import codes

ROW = (
    "0, NVIDIA H100 PCIe, GPU-1, 00000000:C1:00.0, 580.1, 81559, 3, 614, 9.0, Disabled, Disabled, 0, 4, "
    "[N/A], [N/A], [N/A], 0, No, No, Not Active, Not Active, Not Active, None"
)


def test_csv_with_all_fields() -> None:
    (gpu,) = nvidia_csv.parse(ROW, nvidia_csv.FULL).gpus
    assert (gpu["class"], gpu["bus"], gpu["compute_capability"], gpu["placeable"]) == (
        "h100-pcie-80gb",
        "0000:c1:00.0",
        "9.0",
        True,
    )
    assert gpu["memory_reserved_mib"] == 614
    assert gpu["health"] == {
        "recovery_action": "None",
        "ecc_volatile_uncorrectable": 0,
        "ecc_aggregate_uncorrectable": 4,
        "remapped_uncorrectable": 0,
    }


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("ecc.errors.uncorrected.volatile.total", "1", "ecc_uncorrectable"),
        ("remapped_rows.failure", "Yes", "row_remap_failed"),
        ("remapped_rows.pending", "Yes", "row_remap_pending"),
        ("retired_pages.pending", "Yes", "retired_pages_pending"),
        ("retired_pages.double_bit.count", "64", "retired_pages_limit"),
        ("clocks_throttle_reasons.hw_thermal_slowdown", "Active", "hw_thermal"),
        ("gpu_recovery_action", "Reset", "reset_required"),
        ("mig.mode.pending", "Enabled", "mig_pending"),
        ("memory.used", "[GPU is lost]", "lost"),
        ("memory.used", "[GPU requires reset]", "reset_required"),
        ("uuid", "[Unknown Error]", "not_answering"),
        ("name", "[Insufficient Permissions]", "no_permission"),
    ],
)
def test_csv_health(name: str, value: str, code: str) -> None:
    cells = dict(zip(nvidia_csv.FULL, ROW.split(", "), strict=True)) | {name: value}
    (gpu,) = nvidia_csv.parse(", ".join(cells.values()), nvidia_csv.FULL).gpus
    assert codes(gpu) == [code]


def test_csv_mig_devices_come_from_the_list() -> None:
    row = ROW.replace("Disabled, Disabled", "Enabled, Enabled").replace(
        "GPU-1", "GPU-5c1d2e3f-aaaa-bbbb-cccc-000000000001"
    )
    found = nvidia_csv.parse(row, nvidia_csv.FULL, listed=nvidia_list.parse(samples.text("mig_list.txt")))
    assert [gpu["class"].rpartition("-")[2] for gpu in found.gpus[1:]] == ["3g.40gb", "1g.10gb", "1c.3g.40gb"]
    assert [gpu["placeable"] for gpu in found.gpus] == [False, True, True, True]
    assert {gpu["memory_total_mib"] for gpu in found.gpus[1:]} == {None}  # CSV does not tell it


def test_csv_processes_by_card() -> None:
    apps = nvidia_csv.parse_apps("GPU-1, 12, /opt/a, b --key x, 500\nGPU-1, 13, [Not Found], [N/A]\nnothing\n")
    (gpu,) = nvidia_csv.parse(ROW, nvidia_csv.FULL, apps=apps).gpus
    assert [(p["pid"], p["name"], p["memory_mib"]) for p in gpu["processes"]] == [
        (12, "/opt/a,", 500),
        (13, None, None),
    ]
