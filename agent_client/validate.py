"""`validate PROFILE.yaml`: what stands against a profile on this node, and the exact command that would run."""

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from agent_client import fit
from agent_client.config import AgentConfig
from agent_client.engines import Launch
from agent_client.hardware import DiscoveryOptions, discover
from agent_client.hardware.program import run_quietly
from agent_client.installed import Installed
from agent_client.ledger import Ledger
from agent_client.plain_data import printable, read_at_most
from agent_client.profile import Problem, ProfileError, parse_profile
from agent_client.profile.memory import GIB, MemoryEstimate
from agent_client.yaml_text import read_yaml_file

#: Far more than a machine has to tell of.
MOST_INVENTORY_BYTES = 16_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", metavar="PROFILE.yaml", help="a profile, or a model of a catalog file")
    parser.add_argument("--show-command", action="store_true", help="the command and who decided each part of it")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inventory", metavar="FILE", help="of another machine, as `inventory --json` printed it")


def run(args: argparse.Namespace, config: AgentConfig) -> int:
    out: dict[str, Any] = {"ok": False, "problems": [], "warnings": [], "argv": [], "env": {}, "origins": {}}
    try:
        out |= _checked(args, config)
    except ProfileError as error:
        out["problems"] = [_problem(problem) for problem in error.problems]
    if args.json:
        sys.stdout.write(json.dumps(out, indent=2) + "\n")
    else:
        _write(out, show_command=args.show_command)
    return 0 if out["ok"] else 1


def _checked(args: argparse.Namespace, config: AgentConfig) -> dict[str, Any]:
    hint = "give a YAML file with keys and values, such as `engine: vllm`"
    data = _read(args.profile, read_yaml_file, hint)
    entry = data if isinstance(data, dict) and "profile" in data else {"profile": data}
    profile = parse_profile(entry["profile"])
    found = fit.check(
        config,
        profile,
        _inventory(args, config),
        served_names=_names(entry),
        installed=Installed(run=run_quietly, folder=config.state_dir, lasting=False),
    )
    ranks = [_shown(launch) for launch in found.ranks]
    out: dict[str, Any] = {"ok": not found.problems, "problems": [_problem(problem) for problem in found.problems]}
    out["warnings"] = [_problem(problem) for problem in found.warnings]
    out |= ranks[0] if ranks else {}
    out |= {"ranks": ranks} if len(ranks) > 1 else {}
    return out | {"memory": _memory(found.estimate)}


def _inventory(args: argparse.Namespace, config: AgentConfig) -> Mapping[str, Any]:
    if args.inventory:
        found: Mapping[str, Any] = _read(args.inventory, _inventory_of, "give what `inventory --json` printed")
        return found
    ledger = Ledger(config.state_dir / "ledger.json")
    pids = tuple(entry.pid for entry in ledger.entries.values() if entry.pid)
    return discover(DiscoveryOptions(**config.of_hardware(), owned_pids=lambda: pids)).to_json()


def _inventory_of(path: Path) -> dict[str, Any]:
    data = json.loads(read_at_most(path, MOST_INVENTORY_BYTES))
    if not isinstance(data, dict) or "gpus" not in data:
        raise ValueError("it is no inventory")
    return data


def _read(path: str, parse: Callable[[Path], Any], hint: str) -> Any:
    """Raises ProfileError, which names the file."""
    try:
        return parse(Path(path))
    except (OSError, ValueError, RecursionError) as error:  # the last: JSON that is nested without end
        why = error.strerror if isinstance(error, OSError) else error
        problem = Problem(code="unreadable", field="", text=f"cannot read {path}: {why}", hint=hint)
        raise ProfileError([problem]) from None


def _names(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a catalog entry; a profile alone has none."""
    aliases = entry.get("aliases")
    names = (entry.get("name"), *(aliases if isinstance(aliases, list) else ()))
    return tuple(name for name in names if isinstance(name, str) and name) or ("model",)


def _shown(launch: Launch) -> dict[str, Any]:
    return {
        "argv": list(launch.shown_argv),
        "env": {variable.name: variable.shown for variable in launch.env},
        "origins": {name: origin.value for name, origin in launch.origins.items()},
    }


def _memory(estimate: MemoryEstimate) -> dict[str, Any]:
    """Of the fullest GPU; a figure that is not known is null."""
    parts = [{"name": part.name, "bytes": part.bytes, "how": part.how} for part in estimate.parts]
    return {"parts": parts, "total_bytes": estimate.total, "share": estimate.share}


def _problem(problem: Problem) -> dict[str, str]:
    return {"code": problem.code, "text": problem.text, "hint": problem.hint}


def _say(stream: TextIO, text: str) -> None:
    stream.write(printable(text))


def _write(out: Mapping[str, Any], *, show_command: bool) -> None:
    for problem in out["problems"]:
        _say(sys.stderr, problem["text"] + (f"; {problem['hint']}" if problem["hint"] else "") + "\n")
    for problem in out["warnings"]:
        _say(sys.stderr, f"warning: {problem['text']}; {problem['hint']}\n")
    if out["ok"]:
        _say(sys.stdout, "ok\n")
    ranks: Sequence[Mapping[str, Any]] = out.get("ranks", [out]) if out["argv"] and show_command else []
    for rank, shown in enumerate(ranks):
        if len(ranks) > 1:
            _say(sys.stdout, f"# rank {rank} of {len(ranks)}\n")
        origins = shown["origins"]
        for name, value in shown["env"].items():
            _say(sys.stdout, f"{name}={shlex.quote(value)}   # {origins[name]}\n")
        _say(sys.stdout, shlex.join(shown["argv"]) + "\n")
        for name in (name for name in origins if name not in shown["env"]):
            _say(sys.stdout, f"# {name}: {origins[name]}\n")
    if ranks:
        known = [part for part in out["memory"]["parts"] if part["bytes"] is not None]
        for part in known:
            _say(sys.stdout, f"# {part['name']}: {part['bytes'] / GIB:.2f} GiB = {part['how']}\n")
