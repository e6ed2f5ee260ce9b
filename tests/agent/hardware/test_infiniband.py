"""HCA ports from captured and built trees of /sys/class/infiniband."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_client.hardware import infiniband
from tests.agent.hardware.sysfs import unpack

DATA = Path(__file__).parent / "data" / "sysfs_infiniband"
SAMPLES = sorted(path.stem for path in DATA.glob("*.sysfs"))
ADAPTER_KEYS = ("hca", "bond", "netdev")  # where an expected port tells something of its adapter


def check_port(adapter: dict[str, Any], port: dict[str, Any], expected: dict[str, Any]) -> None:
    """Every key of the hand-written expectation, in its own spelling."""
    for key, value in expected.items():
        if key == "sm_problem":
            assert ("no_subnet_manager" in [p["code"] for p in port["problems"]]) is value, key
        elif key in ("lid", "sm_lid"):
            assert port[key] == (None if value is None else int(value, 16)), key
        elif key in ADAPTER_KEYS:
            assert adapter[key] == value, key
        else:
            assert port[key] == value, key


@pytest.mark.parametrize("name", SAMPLES)
def test_capture_reads_as_expected(name: str, tmp_path: Path) -> None:
    root = unpack((DATA / f"{name}.sysfs").read_text(), tmp_path / "infiniband")
    expected = json.loads((DATA / f"{name}.expected.json").read_text())
    assert set(expected) <= {"ports", "numa", "note", "ignored"}
    adapters = infiniband.read(root, ())
    ports = {(a["hca"], p["port"]): (a, p) for a in adapters for p in a["ports"]}
    assert sorted(ports) == sorted((e["hca"], e["port"]) for e in expected["ports"])
    for wanted in expected["ports"]:
        check_port(*ports[wanted["hca"], wanted["port"]], wanted)
    for hca, numa in expected.get("numa", {}).items():
        assert next(a["numa"] for a in adapters if a["hca"] == hca) == numa
    assert not {note.partition(":")[0] for note in expected.get("ignored", [])} & {a["hca"] for a in adapters}


def build(tmp_path: Path, text: str) -> Path:
    return unpack(text, tmp_path / "infiniband")


def one(tmp_path: Path, *, hca: str = "mlx5_0", device: str = "", **port: str) -> dict[str, Any]:
    """The adapter of a tree with one good InfiniBand port, changed by what is given; "" leaves the file out."""
    files = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "lid": "0x12a",
        "sm_lid": "0x1",
        **port,
    }
    lines = [f"{hca}/ports/1/{name}: {value}" for name, value in files.items() if value]
    lines += [f"{hca}/{line}" for line in device.splitlines() if line.strip()]
    (adapter,) = infiniband.read(build(tmp_path, "\n".join(lines)), (("ib-east", ("mlx5_[0-3]",)),))
    return adapter


def codes(adapter: dict[str, Any], port: int = 0) -> list[str]:
    return [problem["code"] for problem in adapter["ports"][port]["problems"]]


def gid_files(*entries: tuple[int, str, str, str]) -> str:
    lines = []
    for index, gid, kind, netdev in entries:
        lines += [f"ports/1/gids/{index}: {gid}", f"ports/1/gid_attrs/types/{index}: {kind}"]
        lines.append(f"ports/1/gid_attrs/ndevs/{index}: {netdev}")
    return "\n".join(lines)


ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
LINK_LOCAL = "fe80:0000:0000:0000:a288:c2ff:fe11:2233"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a01:0203"
IPV4_LINK_LOCAL = "0000:0000:0000:0000:0000:ffff:a9fe:0203"
GLOBAL = "2001:0db8:0000:0000:0000:0000:0000:0007"
PRIVATE = "fd00:0000:0000:0001:0000:0000:0000:0007"


@pytest.mark.parametrize(
    ("entries", "index"),
    [
        ([(0, LINK_LOCAL, "IB/RoCE v1", "eth0"), (1, LINK_LOCAL, "RoCE v2", "eth0")], None),
        ([(2, IPV4, "IB/RoCE v1", "eth0"), (3, IPV4, "RoCE v2", "eth0")], 3),
        ([(3, IPV4, "RoCE v2", "eth0"), (5, IPV4, "RoCE v2", "eth0")], 3),
        ([(9, IPV4, "RoCE v2", "eth0"), (10, IPV4, "RoCE v2", "eth0"), (1, LINK_LOCAL, "RoCE v2", "eth0")], 9),
        ([(1, GLOBAL, "RoCE v2", "eth0"), (3, IPV4, "RoCE v2", "eth0")], 3),
        ([(1, LINK_LOCAL, "RoCE v2", "eth0"), (3, GLOBAL, "RoCE v2", "eth0")], 3),
        ([(1, PRIVATE, "RoCE v2", "eth0")], 1),
        ([(1, GLOBAL, "IB/RoCE v1", "eth0")], None),
        ([(1, IPV4_LINK_LOCAL, "RoCE v2", "eth0")], None),
        ([(1, IPV4_LINK_LOCAL, "RoCE v2", "eth0"), (3, GLOBAL, "RoCE v2", "eth0")], 3),
        ([(0, ZERO, "!EINVAL", "!EINVAL"), (1, "fe80:" + ZERO[5:], "!EINVAL", "!EINVAL")], None),
        ([(3, IPV4, "!EINVAL", "eth0")], None),
        ([(3, "junk", "RoCE v2", "eth0"), (4, "!EIO", "RoCE v2", "eth0")], None),
        ([], None),
    ],
)
def test_gid_index_is_the_lowest_routable_roce_v2(
    tmp_path: Path, entries: list[tuple[int, str, str, str]], index: int | None
) -> None:
    adapter = one(tmp_path, link_layer="Ethernet", sm_lid="0x0", lid="0x0", device=gid_files(*entries))
    assert adapter["ports"][0]["gid_index"] == index
    assert adapter["ports"][0]["gid_type"] == (None if index is None else "RoCE v2")


def test_gid_of_the_ports_own_netdev_goes_before_a_vlans(tmp_path: Path) -> None:
    entries = gid_files((2, IPV4, "RoCE v2", "eth0.7"), (5, IPV4, "RoCE v2", "eth0"))
    files = entries + "\ndevice -> ../0000:1b:00.0\ndevice/net/eth0/dev_port: 0"
    adapter = one(tmp_path, link_layer="Ethernet", sm_lid="0x0", device=files)
    assert (adapter["ports"][0]["gid_index"], adapter["netdev"]) == (5, "eth0")


def test_gid_index_stays_unset_on_infiniband(tmp_path: Path) -> None:
    adapter = one(tmp_path, device=gid_files((0, GLOBAL, "RoCE v2", "ib0")))
    assert adapter["ports"][0]["gid_index"] is None
    assert adapter["ports"][0]["gid_prefix"] == "2001:0db8:0000:0000"


@pytest.mark.parametrize(
    ("rate", "gbps", "name"),
    [
        ("2.5 Gb/sec (1X SDR)", 2.5, "1X SDR"),
        ("10 Gb/sec (4X)", 10.0, "4X"),
        ("100 Gb/sec", 100.0, None),
        ("!EINVAL", None, None),
        ("", None, None),
        ("fast", None, None),
        ("4\u0660\u0660 Gb/sec (4X NDR)", None, None),
        ("9" * 400 + " Gb/sec (4X NDR)", None, None),
    ],
)
def test_rate_is_a_figure_or_nothing(tmp_path: Path, rate: str, gbps: float | None, name: str | None) -> None:
    port = one(tmp_path, rate=rate)["ports"][0]
    assert (port["rate_gbps"], port["rate_name"]) == (gbps, name)


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        ({}, []),
        ({"state": "5: ACTIVE_DEFER"}, []),
        ({"state": "2: INIT", "sm_lid": "0x0"}, ["no_subnet_manager"]),
        ({"state": "2: INIT", "sm_lid": "0x1"}, ["no_subnet_manager"]),
        ({"sm_lid": "0x0"}, ["no_subnet_manager"]),
        ({"state": "2: INIT", "sm_lid": ""}, ["no_subnet_manager"]),
        ({"sm_lid": ""}, []),
        ({"sm_lid": "!EINVAL", "lid": "!EINVAL"}, []),
        ({"sm_lid": "0x0", "link_layer": "Ethernet"}, []),
        ({"sm_lid": "0x0", "link_layer": ""}, []),
        ({"sm_lid": "0x0", "phys_state": ""}, []),
        (
            {"state": "1: DOWN", "phys_state": "2: Polling", "sm_lid": "0x0", "rate": "10 Gb/sec (4X SDR)"},
            ["port_down"],
        ),
        ({"state": "1: DOWN", "phys_state": "3: Disabled", "rate": "!EINVAL"}, ["port_down"]),
        ({"state": "3: ARMED"}, ["port_down"]),
        ({"state": "2: INIT", "link_layer": "Ethernet", "sm_lid": "0x0"}, ["port_down"]),
        ({"state": ""}, []),
        ({"state": "\udcff\udcfe"}, []),
        ({"rate": "25 Gb/sec (1X EDR)"}, ["link_degraded"]),
        ({"rate": "100 Gb/sec (1X NDR)"}, ["link_degraded"]),
        ({"rate": "50 Gb/sec (2X EDR)"}, ["link_degraded"]),
        ({"rate": "10 Gb/sec (4X SDR)"}, ["link_degraded"]),
        ({"rate": "100 Gb/sec (2X HDR)"}, []),
        ({"rate": "200 Gb/sec (2X NDR)"}, []),
        ({"rate": "25 Gb/sec (1X EDR)", "link_layer": "Ethernet", "sm_lid": "0x0"}, []),
        ({"phys_state": "6: LinkErrorRecovery"}, ["link_degraded"]),
    ],
)
def test_port_problems(tmp_path: Path, port: dict[str, str], expected: list[str]) -> None:
    assert codes(one(tmp_path, **port)) == expected


def test_slow_but_right_speed_of_an_old_card_is_no_problem(tmp_path: Path) -> None:
    assert codes(one(tmp_path, hca="mthca0", rate="10 Gb/sec (4X SDR)")) == []


def test_problem_tells_the_figure_and_a_way_out(tmp_path: Path) -> None:
    (problem,) = one(tmp_path, rate="25 Gb/sec (1X EDR)")["ports"][0]["problems"]
    assert "25 Gb/s (1X EDR)" in problem["text"]
    assert problem["severity"] == "warning"
    assert problem["hint"]


@pytest.mark.parametrize(
    ("hca", "device", "link_layer", "transport"),
    [
        ("mlx5_0", "", "InfiniBand", "infiniband"),
        ("mlx5_0", "", "Ethernet", "roce"),
        ("mlx5_0", "", "", None),
        ("hfi1_0", "", "InfiniBand", "omnipath"),
        ("i40iw0", "", "InfiniBand", "iwarp"),
        ("irdma0", "node_type: 4: RNIC", "Ethernet", "iwarp"),
        ("irdma0", "node_type: 1: CA", "Ethernet", "roce"),
        ("efa_0", "node_guid: 0000:0000:0000:0000", "Unknown", "efa"),
        ("rdmap0s6", "", "Unknown", None),
        ("rxe0", "parent: eth0", "Ethernet", "roce"),
        ("siw0", "", "Ethernet", "iwarp"),
    ],
)
def test_transport_tells_fabrics_apart(
    tmp_path: Path, hca: str, device: str, link_layer: str, transport: str | None
) -> None:
    files = device + "\n" + gid_files((3, IPV4, "RoCE v2", "eth0"))
    port = one(tmp_path, hca=hca, device=files, link_layer=link_layer, sm_lid="0x0")["ports"][0]
    assert port["transport"] == transport
    assert (port["gid_index"] is not None) is (transport == "roce")
    subnet = transport in ("infiniband", "omnipath")
    assert ("no_subnet_manager" in [p["code"] for p in port["problems"]]) is subnet


def test_driver_tells_a_renamed_device(tmp_path: Path) -> None:
    (tmp_path / "_pci" / "0000:00:06.0").mkdir(parents=True)
    (tmp_path / "drivers" / "efa").mkdir(parents=True)
    (tmp_path / "_pci" / "0000:00:06.0" / "driver").symlink_to(tmp_path / "drivers" / "efa")
    adapter = one(tmp_path, hca="rdmap0s6", device="device -> ../0000:00:06.0", link_layer="Unknown")
    assert adapter["ports"][0]["transport"] == "efa"
    assert adapter["bus"] == "0000:00:06.0"


def test_device_figures(tmp_path: Path) -> None:
    device = """device -> ../../../0000:1b:00.0
node_guid: 946d:ae03:00cd:e72c
fw_ver: 28.41.1000
hca_type: MT4129
"""
    adapter = one(tmp_path, device=device)
    assert {key: adapter[key] for key in ("node_guid", "firmware", "bus", "numa", "virtual", "bond", "kind")} == {
        "node_guid": "946d:ae03:00cd:e72c",
        "firmware": "28.41.1000",
        "bus": "0000:1b:00.0",
        "numa": None,
        "virtual": False,
        "bond": False,
        "kind": "physical",
    }
    assert adapter["ports"][0]["fabric"] == "ib-east"


@pytest.mark.parametrize(("text", "numa"), [("1", 1), ("0", 0), ("-1", None), ("!EINVAL", None), ("\udcc3", None)])
def test_numa(tmp_path: Path, text: str, numa: int | None) -> None:
    assert one(tmp_path, device=f"device -> ../0000:1b:00.0\ndevice/numa_node: {text}")["numa"] == numa


def test_virtual_function_on_the_host_names_its_physical_function(tmp_path: Path) -> None:
    device = "device -> ../0000:1b:00.2\ndevice/physfn -> ../0000:1b:00.0"
    adapter = one(tmp_path, device=device)
    assert (adapter["kind"], adapter["virtual"], adapter["parent"]) == ("virtual_function", True, "0000:1b:00.0")


def test_virtual_function_in_a_guest_is_known_by_its_type(tmp_path: Path) -> None:
    root = build(tmp_path, (DATA / "a100_cloud_vf_hdr.sysfs").read_text())
    assert {adapter["kind"] for adapter in infiniband.read(root, ())} == {"virtual_function"}


def test_sub_function_takes_bus_and_numa_from_above(tmp_path: Path) -> None:
    above = tmp_path / "_pci" / "0000:1b:00.0"
    function = above / "mlx5_core.sf.4"
    function.mkdir(parents=True)
    (above / "numa_node").write_text("1\n")
    (tmp_path / "infiniband" / "mlx5_0").mkdir(parents=True)
    (tmp_path / "infiniband" / "mlx5_0" / "device").symlink_to(function)
    adapter = one(tmp_path)
    assert (adapter["kind"], adapter["bus"], adapter["numa"]) == ("sub_function", "0000:1b:00.0", 1)


def test_software_device_is_no_hardware(tmp_path: Path) -> None:
    assert one(tmp_path, hca="over_eth0", device="parent: eth0", link_layer="Ethernet")["kind"] == "software"


def test_bond_is_known_by_its_netdev(tmp_path: Path) -> None:
    (tmp_path / "net" / "team0" / "bonding").mkdir(parents=True)
    adapter = one(tmp_path, link_layer="Ethernet", device=gid_files((3, IPV4, "RoCE v2", "team0")))
    assert (adapter["bond"], adapter["virtual"], adapter["netdev"]) == (True, False, "team0")


def test_each_port_has_its_own_netdev(tmp_path: Path) -> None:
    text = """mlx4_0/device -> ../0000:82:00.0
mlx4_0/device/net/ib0/dev_port: 0
mlx4_0/device/net/ib1/dev_port: 1
mlx4_0/device/net/rep0/phys_port_name: pf0vf1
mlx4_0/ports/1/state: 4: ACTIVE
mlx4_0/ports/2/state: 4: ACTIVE
"""
    (adapter,) = infiniband.read(build(tmp_path, text), ())
    assert [port["netdev"] for port in adapter["ports"]] == ["ib0", "ib1"]
    assert adapter["netdev"] == "ib0"


def test_planes_of_an_adapter_are_no_second_adapter(tmp_path: Path) -> None:
    text = "mlx5_0/device -> ../0000:0b:00.0\nmlx5_0/ports/1/state: 4: ACTIVE\nsmi1/device -> ../0000:0b:00.0\n"
    text += "".join(f"smi1/ports/{port}/state: 1: DOWN\n" for port in range(1, 5))
    assert [adapter["hca"] for adapter in infiniband.read(build(tmp_path, text), ())] == ["mlx5_0"]


def test_spare_ports_of_a_multi_plane_adapter_are_no_problem(tmp_path: Path) -> None:
    text = "".join(
        f"mlx5_0/ports/{port}/state: {'4: ACTIVE' if port % 3 == 0 else '1: DOWN'}\n"
        f"mlx5_0/ports/{port}/link_layer: Ethernet\n"
        for port in range(1, 13)
    )
    (adapter,) = infiniband.read(build(tmp_path, text), (("roce", ("mlx5_0",)),))
    assert [port["port"] for port in adapter["ports"]] == list(range(1, 13))
    assert all(not port["problems"] for port in adapter["ports"])
    assert infiniband.missing_adapters([adapter], (("roce", ("mlx5_0",)),)) == []


def test_names_and_ports_sort_as_numbers(tmp_path: Path) -> None:
    text = "".join(f"mlx5_{number}/ports/1/state: 4: ACTIVE\n" for number in (10, 9, 2, 11, 1))
    assert [a["hca"] for a in infiniband.read(build(tmp_path, text), ())] == [
        f"mlx5_{number}" for number in (1, 2, 9, 10, 11)
    ]


def test_what_is_no_adapter_is_skipped(tmp_path: Path) -> None:
    text = """README: hello
mlx5_0/ports/1/state: 4: ACTIVE
mlx5_1/node_guid: 946d:ae03:00cd:e72c
mlx5_2/ports: none
mlx5_3/ports/x/state: 4: ACTIVE
\udcff/ports/1/state: 4: ACTIVE
a,b/ports/1/state: 4: ACTIVE
"""
    assert [adapter["hca"] for adapter in infiniband.read(build(tmp_path, text), ())] == ["mlx5_0"]
    assert infiniband.read(tmp_path / "absent", ()) == []


def test_bytes_that_are_no_text_survive_as_text(tmp_path: Path) -> None:
    adapter = one(tmp_path, device="fw_ver: 28.\udcff\udc80\x07")
    assert adapter["firmware"].startswith("28.")
    json.dumps(adapter, ensure_ascii=False).encode()


def missing(root: Path, *patterns: str) -> list[str]:
    fabrics = (("ib-east", patterns),)
    found = infiniband.missing_adapters(infiniband.read(root, fabrics), fabrics)
    assert {problem["code"] for problem in found} <= {"missing_adapter"}
    return [problem["text"] for problem in found]


def test_labelled_adapters_that_are_missing_are_named(tmp_path: Path) -> None:
    root = build(tmp_path, (DATA / "h100_roce_some_polling.sysfs").read_text())
    assert missing(root, "mlx5_[0-3]", "mlx5_10") == []
    assert missing(root, "mlx5_12", "mlx5_0")[0] == "fabric ib-east: adapter mlx5_12 is not there"
    (many,) = missing(root, "ib_[0-8]", "mlx5_12")
    assert many == "fabric ib-east: adapters ib_0, ib_1, ib_2, ib_3, ib_4, ib_5, ib_6, ib_7 and 2 more are not there"
    assert missing(root, "mlx5_1[0-3]") == [
        "fabric ib-east: adapters mlx5_12 and mlx5_13 are not there",
        "fabric ib-east: adapter mlx5_11 is down (port 1: DOWN, Polling)",
    ]
    fabrics = (("ib-east", ("mlx5_*",)),)
    (globbed,) = infiniband.missing_adapters(infiniband.read(root, fabrics), fabrics)
    assert globbed["hint"] == "patterns are regular expressions: write mlx5_.*"
    (none,) = missing(root, "hfi1_.*")
    assert "no adapter matches 'hfi1_.*'; there are: mlx5_0, mlx5_1, mlx5_2" in none


def test_open_patterns_name_no_adapter_that_nobody_asked_for(tmp_path: Path) -> None:
    root = build(tmp_path, "mlx5_0/ports/1/state: 4: ACTIVE\n")
    assert missing(root, "mlx5_.*", "mlx5_[0-9]", "(mlx5_0|mlx5_1)", "[a-z]+[0-9]_[0-9]") == []


def test_adapter_of_unknown_state_is_not_called_down(tmp_path: Path) -> None:
    root = build(tmp_path, "mlx5_0/ports/1/state: !EINVAL\n")
    assert missing(root, "mlx5_0") == []


def test_broken_pattern_is_a_warning_by_name(tmp_path: Path) -> None:
    root = build(tmp_path, "mlx5_0/ports/1/state: 4: ACTIVE\n")
    (text,) = missing(root, "mlx5_(")
    assert text.startswith("fabric ib-east: cannot use the pattern 'mlx5_(': ")
    assert infiniband.read(root, (("ib-east", ("mlx5_(",)),))[0]["ports"][0]["fabric"] is None
