"""`python -m agent_client inventory`: what placement would see, before the node joins."""

import argparse
import json
import socket
import sys
from pathlib import Path
from typing import Any

from agent_client.hardware import DiscoveryOptions, discover


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the inventory as JSON")
    parser.add_argument("--no-gpu", action="store_true", help="do not look for GPUs")
    parser.add_argument("--nvidia-smi", metavar="PATH", help="the nvidia-smi program to ask")
    parser.add_argument("--ib-root", metavar="DIR", default="/sys/class/infiniband")


def run_inventory(args: argparse.Namespace, fabrics: tuple[tuple[str, tuple[str, ...]], ...] = ()) -> int:
    options = DiscoveryOptions(
        node_id=args.node_id or socket.gethostname(),
        use_gpu=not args.no_gpu,
        nvidia_smi=args.nvidia_smi,
        ib_root=Path(args.ib_root),
        fabrics=fabrics,
    )
    data = discover(options).to_json()
    if data["error"]:
        sys.stderr.write(f"{data['error']}\n")
    sys.stdout.write(json.dumps(data, indent=2) + "\n" if args.json else render(data))
    return 0


def render(data: dict[str, Any]) -> str:
    gpus = [
        [
            g["index"],
            g["class"],
            g["name"],
            _memory(g["memory_total_mib"]),
            g["compute_capability"],
            _health(g),
            g["domain"],
        ]
        for g in data["gpus"]
    ]
    ports = [
        [a["hca"], p["port"], p["state"], p["rate_gbps"], p["link_layer"], p["gid_prefix"], a["numa"], p["fabric"]]
        for a in data["adapters"]
        for p in a["ports"]
    ]
    classes = sorted({gpu["class"] for gpu in data["gpus"] if gpu["class"]})
    out = [f"node {data['node_id']}   GPU source: {data['source']}   driver: {data['driver'] or '-'}", ""]
    out += _table(["IDX", "CLASS", "NAME", "MEM", "CC", "HEALTH", "DOMAIN"], gpus, "no GPUs")
    out += ["", f"classes: {', '.join(classes) or '-'}", ""]
    out += _table(["HCA", "PORT", "STATE", "RATE", "LINK", "GID-PREFIX", "NUMA", "FABRIC"], ports, "no adapters")
    out += ["", *(f"warning: {text}" for text in data["warnings"])]
    return "\n".join(out).rstrip() + "\n"


def _table(head: list[str], rows: list[list[Any]], empty: str) -> list[str]:
    if not rows:
        return [empty]
    cells = [head, *[["-" if cell is None else str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _memory(mib: int | None) -> str | None:
    return None if mib is None else f"{mib} MiB"


def _health(gpu: dict[str, Any]) -> str:
    codes = ", ".join(problem["code"] for problem in gpu["problems"])
    return codes or ("split (MIG)" if gpu.get("mig_mode") == "enabled" else "ok")
