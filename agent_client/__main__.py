"""`python -m agent_client`: run (default), inventory, join, status, validate."""

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

try:
    from agent_client import __version__, validate
    from agent_client.app import Agent
    from agent_client.config import AgentConfig, ConfigError, load
    from agent_client.hardware import cli as hardware_cli
    from agent_client.identity import StateDirBusy, forget_identity, load_identity, lock_state_dir
    from agent_client.ledger import Ledger
    from agent_client.preflight import engine_warnings
except ModuleNotFoundError as error:
    if (error.name or "agent_client").partition(".")[0] == "agent_client":
        raise
    sys.exit(
        f"cannot start: the Python package {error.name} is not installed for {sys.executable}; "
        f"{sys.executable} -m pip install -r requirements-agent.txt"
    )

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
    validate.add_arguments(commands.add_parser("validate", parents=[common], help="check a profile against this node"))
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
        _tell_what_runs_on(config, stop_engines=args.stop_engines)
    finally:
        os.close(lock)
    return 0


def _tell_what_runs_on(config: AgentConfig, *, stop_engines: bool) -> None:
    """Who stops an agent by hand shall not be surprised by what holds the cards."""
    count = sum(bool(entry.pid) for entry in Ledger(config.state_dir / "ledger.json").entries.values())
    if not count:
        sys.stderr.write("the agent has ended, and no engine of it runs on\n")
    elif not stop_engines:
        engines = "1 engine keeps" if count == 1 else f"{count} engines keep"
        sys.stderr.write(f"{engines} running, and the next start takes them back; `run --stop-engines` ends them\n")


async def _agent(config: AgentConfig, *, stop_engines: bool) -> None:
    await Agent(config).run(stop_engines=stop_engines)


def _inventory(args: argparse.Namespace, config: AgentConfig) -> int:
    return hardware_cli.run_inventory(
        args, hardware_cli.options_of(args, **config.of_hardware(), also_warned=lambda: engine_warnings(config))
    )


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
    return validate.run(args, config)


COMMANDS = {"run": _run, "inventory": _inventory, "join": _join, "status": _status, "validate": _validate}

if __name__ == "__main__":
    sys.exit(main())
