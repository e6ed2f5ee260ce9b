"""Random trees and counters: reading never raises, and each figure of the answer stands in the file it came from."""

import json
import math
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_client.hardware import infiniband, labels, link_counters, ports
from tests.support.examples import examples

relaxed = settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])

DEVICES = ["mlx5_0", "mlx5_10", "mlx5_bond_0", "hfi1_0", "i40iw0", "rxe0", "smi1", "efa_0", "irdma0", "a,b", "\udcff"]
GIDS = [
    "0000:0000:0000:0000:0000:0000:0000:0000",
    "fe80:0000:0000:0000:0000:0000:0000:0000",
    "fe80:0000:0000:0000:a288:c2ff:fe11:2233",
    "0000:0000:0000:0000:0000:ffff:0a01:0203",
    "2001:0db8:0000:0000:0000:0000:0000:0007",
]
WORDS = {
    "state": ["4: ACTIVE", "1: DOWN", "2: INIT", "9: WHAT", "ACTIVE"],
    "phys_state": ["5: LinkUp", "2: Polling", "6: LinkErrorRecovery", "5: <unknown>"],
    "rate": [
        "200 Gb/sec (4X HDR)",
        "2.5 Gb/sec (1X SDR)",
        "25 Gb/sec (1X EDR)",
        "10 Gb/sec (4X)",
        "\u0664 Gb/sec (4X)",
    ],
    "link_layer": ["InfiniBand", "Ethernet", "Unknown"],
    "lid": ["0x12a", "0x0", "65535", "-0x1"],
    "sm_lid": ["0x1", "0x0", "0x", "1_0"],
    "numa_node": ["0", "1", "-1", "\u0661", "9" * 30],
}


class Odd:
    """What may lie in place of a file."""


ODD = ["directory", "loop", "dangling", "fifo", "absent"]
contents = st.one_of(
    st.binary(max_size=30), st.sampled_from([b"", b"\n", b"N/A\n", b"\0\0", b"-1\n"]), st.sampled_from(ODD)
)


def words(name: str) -> st.SearchStrategy[bytes | str]:
    return st.one_of(st.sampled_from([word.encode() + b"\n" for word in WORDS[name]]), contents)


PORT = st.fixed_dictionaries(
    {},
    optional={
        **{name: words(name) for name in ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid")},
        **{f"gids/{index}": st.one_of(st.sampled_from(GIDS).map(str.encode), contents) for index in (0, 3, 10)},
        **{
            f"gid_attrs/types/{index}": st.one_of(st.sampled_from([b"RoCE v2\n", b"IB/RoCE v1\n"]), contents)
            for index in (0, 3, 10)
        },
        "gid_attrs/ndevs/3": contents,
    },
)
DEVICE = st.fixed_dictionaries(
    {"ports/1": PORT},
    optional={
        "ports/2": PORT,
        "ports/x": PORT,
        "device": st.fixed_dictionaries({}, optional={"numa_node": words("numa_node"), "net/eth0/dev_port": contents}),
        **dict.fromkeys(("node_guid", "fw_ver", "hca_type", "node_type", "parent"), contents),
    },
)
HCAS = st.dictionaries(st.sampled_from(DEVICES), DEVICE, max_size=4)
#: No structure at all, out of the names that the reader looks for.
NAMES = st.sampled_from(
    [*DEVICES[:3], "ports", "1", "gids", "0", "device", "net", "state", "gid_attrs", "types", "\udcfe"]
)
ANY_TREE = st.recursive(contents, lambda inner: st.dictionaries(NAMES, inner, max_size=4), max_leaves=25)


def plant(path: Path, tree: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(tree, dict):
        path.mkdir(parents=True, exist_ok=True)
        for name, inner in tree.items():
            plant(path / name, inner)
    elif isinstance(tree, bytes):
        path.write_bytes(tree)
    elif tree == "directory":
        path.mkdir()
    elif tree in ("loop", "dangling"):
        path.symlink_to(path.name if tree == "loop" else "nowhere")
    elif tree == "fifo":
        os.mkfifo(path)


def said(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace").strip().strip("\0").strip()


def check_figures(root: Path, adapter: dict[str, Any]) -> None:
    device = root / adapter["hca"]
    if adapter["numa"] is not None:
        assert adapter["numa"] == int(said(device / "device" / "numa_node")) >= 0
    for port in adapter["ports"]:
        place = device / "ports" / str(port["port"])
        if port["rate_gbps"] is not None:
            assert math.isclose(float(said(place / "rate").split(" Gb/sec")[0]), port["rate_gbps"])
        for name in ("lid", "sm_lid"):
            assert (
                port[name] is None
                or re.fullmatch(f"0[xX]0*{port[name]:x}", said(place / name).lower())
                or (port[name] == 0 and not said(place / name)[2:].strip("0"))
            )
        if port["state"] is not None:
            assert said(place / "state").endswith(port["state"])
        if port["gid_index"] is not None:
            assert said(place / "gid_attrs" / "types" / str(port["gid_index"])) == "RoCE v2"
            assert not said(place / "gids" / str(port["gid_index"])).startswith("fe80")
            assert port["link_layer"] == "Ethernet"
        if port["gid_prefix"] is not None:
            assert any(said(gid).startswith(port["gid_prefix"]) for gid in (place / "gids").iterdir() if gid.is_file())


def read_all(root: Path) -> list[dict[str, Any]]:
    fabrics = (("ib-east", ("mlx5_[0-3]", "mlx5_(")), ("opa", (".*",)))
    adapters = infiniband.read(root, fabrics)
    infiniband.missing_adapters(adapters, fabrics)
    json.dumps(adapters, ensure_ascii=False, allow_nan=False).encode()
    return adapters


@relaxed
@given(HCAS)
def test_odd_files_never_raise_nor_become_figures(hcas: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "infiniband"
        plant(root, hcas)
        for adapter in read_all(root):
            check_figures(root, adapter)
            for port in adapter["ports"]:
                link_counters.read(root / adapter["hca"] / "ports" / str(port["port"]))


@relaxed
@given(ANY_TREE)
def test_any_tree_is_read(tree: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "infiniband"
        plant(root, tree)
        for adapter in read_all(root):
            assert adapter["numa"] is None or (root / adapter["hca"] / "device").exists()
        link_counters.read(root)


@relaxed
@given(st.text(max_size=40))
def test_parsers_of_words_take_any_text(text: str) -> None:
    rate, _ = ports.parse_rate(text)
    assert rate is None or text.startswith(f"{rate:g}"[:1])
    number = ports.hexadecimal(text)
    assert number is None or int(text, 16) == number
    word = ports.after_number(text)
    assert word is None or text.endswith(word)


@relaxed
@given(st.text(alphabet="mlx5_[]-09az()*\\|{}?+.", max_size=24), st.sampled_from(["mlx5_0", "mlx5_10", ""]))
def test_labels_take_any_pattern(pattern: str, hca: str) -> None:
    fabrics = (("ib-east", (pattern,)),)
    assert labels.fabric_of(hca, fabrics) in (None, "ib-east")
    for name in labels.names_of(pattern):
        assert re.fullmatch(pattern, name)
    adapter = {"hca": hca, "ports": [{"port": 1, "state": "ACTIVE", "phys_state": None}]}
    for problem in labels.missing_adapters([adapter], fabrics):
        assert problem["code"] == "missing_adapter"
        assert "ib-east" in problem["text"]


READING = st.dictionaries(
    st.sampled_from(["link_downed", "symbol_error", "port_rcv_data", "out_of_sequence"]),
    st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1), st.sampled_from([255, 65_535, 2**32 - 1, 2**64 - 1])),
)


@relaxed
@given(READING, READING, st.floats())
def test_growth_is_between_two_readings(before: dict[str, int], after: dict[str, int], seconds: float) -> None:
    for name, grown in link_counters.growth(before, after, seconds).items():
        words_in_bytes = 4 if name == "port_rcv_data" else 1
        assert grown.amount == (after[name] - before[name]) * words_in_bytes >= 0
        assert grown.per_second >= 0
        assert math.isclose(grown.per_second * seconds, grown.amount, rel_tol=1e-6) or math.isinf(grown.per_second)
