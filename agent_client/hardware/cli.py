"""`python -m agent_client inventory`: what placement would see, before the node joins."""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from agent_client.hardware.discovery import Discovery, DiscoveryOptions

_BAD, _ODD, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[0m"
_OTHER_LINKS = {"omnipath": "Omni-Path", "iwarp": "iWARP", "efa": "EFA"}
_CLEAR = "\x1b[H\x1b[2J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the inventory as JSON, version 1")
    parser.add_argument("--no-gpu", action="store_true", help="do not look for GPUs")
    parser.add_argument("--no-nvml", action="store_true", help="ask nvidia-smi instead of the driver's library")
    parser.add_argument("--nvidia-smi", metavar="PATH", help="the nvidia-smi program to ask, and it alone")
    parser.add_argument("--ib-root", metavar="DIR", help="where adapters are listed (default: /sys/class/infiniband)")
    parser.add_argument("--watch", metavar="SECONDS", nargs="?", const=5.0, type=_seconds, help="look again and again")


def options_of(args: argparse.Namespace, **node: Any) -> DiscoveryOptions:
    """`node`: what agent.yaml says of the machine."""
    return DiscoveryOptions(
        use_gpu=not args.no_gpu,
        use_nvml=not args.no_nvml,
        nvidia_smi=args.nvidia_smi,
        **(node | ({"ib_root": Path(args.ib_root)} if args.ib_root else {})),
    )


def run_inventory(args: argparse.Namespace, options: DiscoveryOptions) -> int:
    """Always 0: what is sick is said, and the rest is shown."""
    discovery = Discovery(options)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    while True:
        data = discovery.look().to_json()
        if data["error"]:
            sys.stderr.write(f"{_printable(data['error'])}\n")
        if args.ib_root and not Path(args.ib_root).is_dir():
            sys.stderr.write(f"cannot read adapters from {args.ib_root}: it is no folder; give one as --ib-root\n")
        if args.json:  # one line a look when it goes on, so that programs can read it
            sys.stdout.write(json.dumps(data, indent=None if args.watch else 2) + "\n")
        else:
            shown = render(data, colour=colour, without_gpus=_without_gpus(args, data["source"]))
            sys.stdout.write((_CLEAR if args.watch and colour else "") + shown)
        sys.stdout.flush()
        if args.watch is None:
            return 0
        try:
            time.sleep(args.watch)
        except KeyboardInterrupt:
            return 0


def _without_gpus(args: argparse.Namespace, source: str) -> str:
    """Why there are none, as far as that is known."""
    if args.no_gpu:
        return "no GPUs were looked for (--no-gpu)"
    nvml = "" if args.no_nvml else "NVML, "
    return f"no GPUs: {nvml}nvidia-smi, amd-smi and rocm-smi are not here" if source == "none" else "no GPUs"


def render(data: dict[str, Any], *, colour: bool = False, without_gpus: str = "no GPUs") -> str:
    cards = {gpu["uuid"]: gpu["index"] for gpu in data["gpus"] if gpu["uuid"]}
    gpus = [
        [
            gpu["index"],
            gpu["class"],
            gpu["name"],
            _memory(gpu),
            gpu["compute_capability"],
            _health(gpu),
            gpu["domain"] if gpu["mig"] is None else f"part of GPU {cards.get(gpu['mig']['parent'], '?')}",
        ]
        for gpu in data["gpus"]
    ]
    ports = [
        [
            adapter["hca"],
            port["port"],
            port["state"],
            _rate(port),
            _link(port),
            port["gid_prefix"],
            adapter["numa"],
            port["fabric"],
        ]
        for adapter in data["adapters"]
        for port in adapter["ports"]
    ]
    classes = sorted({gpu["class"] for gpu in data["gpus"] if gpu["class"]})
    driver = (data["driver"] or "-") + (f", CUDA {data['cuda']}" if data["cuda"] else "")
    out = [f"node {_printable(data['node_id'])}   GPU source: {data['source']}   driver: {driver}", ""]
    marks = [_colour(gpu) if colour else "" for gpu in data["gpus"]]
    out += _table(["IDX", "CLASS", "NAME", "MEM", "CC", "HEALTH", "DOMAIN"], gpus, without_gpus, marks)
    out += ["", f"classes: {', '.join(classes) or '-'}", ""]
    out += _table(["HCA", "PORT", "STATE", "RATE", "LINK", "GID-PREFIX", "NUMA", "FABRIC"], ports, "no adapters", [])
    out += ["", *(f"warning: {_printable(text)}" for text in data["warnings"])]
    return "\n".join(out).rstrip() + "\n"


def _table(head: list[str], rows: list[list[Any]], empty: str, marks: list[str]) -> list[str]:
    if not rows:
        return [empty]
    cells = [head, *[["-" if cell is None else _printable(str(cell)) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    shown = [f"{mark}{line}{_PLAIN}" if mark else line for mark, line in zip(marks, lines[1:], strict=False)]
    return [lines[0], *(shown or lines[1:])]


def _printable(text: str) -> str:
    """Names come from devices and from other people's processes: none may command the terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _memory(gpu: dict[str, Any]) -> str | None:
    total, used = gpu["memory_total_mib"], gpu["memory_used_mib"]
    if total is None:
        return None
    shared = " shared" if gpu["shared_memory"] else ""
    return f"{total} MiB{shared}" + (f", {used} used" if used else "")


def _rate(port: dict[str, Any]) -> str | None:
    if port["rate_gbps"] is None:
        return None
    return f"{port['rate_gbps']:g} Gb/s" + (f" ({port['rate_name']})" if port["rate_name"] else "")


def _link(port: dict[str, Any]) -> str | None:
    """Others call themselves InfiniBand too."""
    other = _OTHER_LINKS.get(port["transport"] or "")
    return f"{port['link_layer'] or '-'} ({other})" if other else port["link_layer"]


def _health(gpu: dict[str, Any]) -> str:
    codes = ", ".join(problem["code"] for problem in gpu["problems"])
    if any(problem["severity"] == "unplaceable" for problem in gpu["problems"]):
        return f"unplaceable: {codes}"
    if gpu["mig_mode"] == "enabled":
        return f"split (MIG){', ' if codes else ''}{codes}"
    return codes or ("ok" if gpu["placeable"] else "unplaceable")


def _colour(gpu: dict[str, Any]) -> str:
    if any(problem["severity"] == "unplaceable" for problem in gpu["problems"]):
        return _BAD
    return _ODD if gpu["problems"] else ""


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 86_400:
        raise argparse.ArgumentTypeError("between 0.1 and 86400 seconds are needed")
    return value
