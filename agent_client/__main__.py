"""`python -m agent_client`: run (default), inventory, join, status, validate."""

import argparse
import asyncio
import json
import logging
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import yaml

from agent_client import __version__, fit, preflight
from agent_client.app import Agent
from agent_client.config import AgentConfig, ConfigError, load
from agent_client.engines import Launch, LaunchSpec, PlanError, plan
from agent_client.hardware import DiscoveryOptions, discover
from agent_client.hardware import cli as hardware_cli
from agent_client.identity import StateDirBusy, forget_identity, load_identity, lock_state_dir
from agent_client.ledger import Ledger
from agent_client.profile import Problem, Profile, ProfileError, parse_profile
from agent_client.supervisor.launching import PROGRAMS

CONFIG_FLAGS = ("server", "node_id", "mgmt_addr", "state_dir", "join_secret_file")


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        config = _config(args)
        return int(COMMANDS[args.command or "run"](args, config))
    except (ConfigError, StateDirBusy) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"cannot go on: {error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--config", metavar="agent.yaml", default=argparse.SUPPRESS)
    common.add_argument("--server", metavar="URL", default=argparse.SUPPRESS)
    common.add_argument("--node-id", default=argparse.SUPPRESS, help="this node's label (default: the hostname)")
    common.add_argument("--mgmt-addr", default=argparse.SUPPRESS, help="where the router reaches this node's engines")
    common.add_argument("--state-dir", default=argparse.SUPPRESS)
    common.add_argument("--join-secret-file", default=argparse.SUPPRESS)
    parser = argparse.ArgumentParser(prog="python -m agent_client", description=__doc__, parents=[common])
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--stop-engines", action="store_true", default=False, help="end engines when the agent ends")
    commands = parser.add_subparsers(dest="command")
    run = commands.add_parser("run", parents=[common], help="connect and supervise (the default)")
    run.add_argument("--stop-engines", action="store_true", default=argparse.SUPPRESS)
    hardware_cli.add_arguments(commands.add_parser("inventory", parents=[common], help="show this machine's hardware"))
    commands.add_parser("join", parents=[common], help="forget the old identity; the next run enrols anew")
    commands.add_parser("status", parents=[common], help="show what this agent knows of itself")
    validate = commands.add_parser("validate", parents=[common], help="check a profile against this node")
    validate.add_argument("profile", metavar="PROFILE.yaml")
    validate.add_argument("--show-command", action="store_true")
    validate.add_argument("--json", action="store_true")
    return parser


def _config(args: argparse.Namespace) -> AgentConfig:
    flags = {name: getattr(args, name, None) for name in CONFIG_FLAGS}
    path = getattr(args, "config", None) or os.environ.get("LLMGW_AGENT_CONFIG")
    return load(flags=flags, environ=os.environ, path=Path(path) if path else None)


def _run(args: argparse.Namespace, config: AgentConfig) -> int:
    level = os.environ.get("LLMGW_LOG_LEVEL", "INFO")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("websockets").setLevel(logging.WARNING)
    lock = lock_state_dir(config.state_dir)
    try:
        asyncio.run(_agent(config, stop_engines=args.stop_engines))
    finally:
        os.close(lock)
    return 0


async def _agent(config: AgentConfig, *, stop_engines: bool) -> None:
    await Agent(config).run(stop_engines=stop_engines)


def _inventory(args: argparse.Namespace, config: AgentConfig) -> int:
    return hardware_cli.run_inventory(args, hardware_cli.options_of(args, **config.of_hardware()))


def _join(args: argparse.Namespace, config: AgentConfig) -> int:
    lock = lock_state_dir(config.state_dir)
    forgotten = forget_identity(config.state_dir)
    os.close(lock)
    print("the old identity is forgotten" if forgotten else "there was no identity", end="; ")
    print(f"the next run enrols with {config.server} as {config.node_id}")
    return 0


def _status(args: argparse.Namespace, config: AgentConfig) -> int:
    identity = load_identity(config.state_dir)
    ledger = Ledger(config.state_dir / "ledger.json")
    print(f"node_id: {config.node_id}\nserver: {config.server}\nstate_dir: {config.state_dir}")
    print(f"identity: {identity.node_uid if identity else 'none yet'}")
    print(f"ledger: {'unreadable' if ledger.lost else f'{len(ledger.entries)} engines'}")
    for entry in ledger.entries.values():
        state = "ready" if entry.ready else "starting"
        print(f"  {entry.spec.get('replica')} epoch {entry.epoch}: pid {entry.pid}, {entry.endpoint}, {state}")
    return 0


def _validate(args: argparse.Namespace, config: AgentConfig) -> int:
    out: dict[str, Any] = {"ok": False, "problems": [], "argv": [], "env": {}, "origins": {}}
    try:
        data = yaml.safe_load(Path(args.profile).read_text(encoding="utf-8"))
        profile = parse_profile(data.get("profile", data) if isinstance(data, dict) else data)
        ranks = [_shown(_launch(config, profile, rank)) for rank in range(profile.nodes)]
        against = fit.problems(config, profile, data.get("profile", data), discover(_options(config)).to_json())
        out["problems"] = [_problem(problem) for problem in against]
        out |= {"ok": not against, **ranks[0]} | ({"ranks": ranks} if len(ranks) > 1 else {})
    except (ProfileError, PlanError) as error:
        out["problems"] = [_problem(problem) for problem in error.problems]
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        out["problems"] = [{"code": "unreadable", "text": f"cannot read {args.profile}: {error}", "hint": ""}]
    if args.json:
        print(json.dumps(out, indent=2))
    else:
        for problem in out["problems"]:
            print(problem["text"] + (f"; {problem['hint']}" if problem["hint"] else ""), file=sys.stderr)
        if out["ok"]:
            print("ok")
        for rank, shown in enumerate(out.get("ranks", [out]) if out["argv"] and args.show_command else []):
            if "ranks" in out:
                print(f"# rank {rank} of {profile.nodes}")
            for name, value in shown["env"].items():
                print(f"{name}={value}   # {shown['origins'][name]}")
            print(shlex.join(shown["argv"]))
    return 0 if out["ok"] else 1


def _options(config: AgentConfig) -> DiscoveryOptions:
    ledger = Ledger(config.state_dir / "ledger.json")
    pids = tuple(entry.pid for entry in ledger.entries.values() if entry.pid)
    return DiscoveryOptions(**config.of_hardware(), owned_pids=lambda: pids)


def _launch(config: AgentConfig, profile: Profile, rank: int) -> Launch:
    """With stand-ins for what the control plane gives: the key, the cards, the address of the first rank."""
    spec = LaunchSpec(
        replica="validate/1",
        served_names=("model",),
        profile=profile,
        port=config.policy.ports[0],
        address=config.mgmt_addr,
        rank=rank,
        nodes=profile.nodes,
        gpus=tuple(f"GPU-{i}" for i in range(profile.gpus_per_node)),
        engine_key="(generated for each replica)",
        command=preflight.command_for(config, profile.engine) or (),
        rendezvous=(config.mgmt_addr, config.policy.ports[-1]),
        secrets=dict.fromkeys(config.secrets, "(secret)"),
        python=sys.executable,
        programs=PROGRAMS,
    )
    return plan(spec)


def _shown(launch: Launch) -> dict[str, Any]:
    return {
        "argv": list(launch.shown_argv),
        "env": {variable.name: variable.shown for variable in launch.env},
        "origins": {variable.name: variable.origin for variable in launch.env},
    }


def _problem(problem: Problem) -> dict[str, str]:
    return {"code": problem.code, "text": problem.text, "hint": problem.hint}


COMMANDS = {"run": _run, "inventory": _inventory, "join": _join, "status": _status, "validate": _validate}

if __name__ == "__main__":
    sys.exit(main())
