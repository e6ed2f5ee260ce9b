"""`manage.py router`: checks its arguments and becomes the router's parent, which holds no Django. With --catalog it
needs neither database nor broker."""

import argparse
import fcntl
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from agent_client.profile import Catalog, ProfileError, UnreadableYaml, parse_catalog, read_yaml_file
from routing.dataplane.messages import BODY_BYTES
from routing.feed import document_of_catalog, write
from routing.server.parent import environment

MOST_BODY_MIB = 4096

NO_AUTH = """
=====================================================================
  WARNING: --no-auth. Whoever reaches {listen} is served WITHOUT A KEY.
=====================================================================
"""


class Command(BaseCommand):
    help = "Serve OpenAI-style requests: from the control plane's database, or with --catalog from a file alone."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--listen", default="127.0.0.1:8080", metavar="HOST:PORT")
        parser.add_argument("--processes", type=int, default=1)
        parser.add_argument("--catalog", metavar="FILE", help="router-only: endpoints and keys from this file")
        parser.add_argument(
            "--state-dir",
            metavar="DIR",
            help="with --catalog: where counts of limits outlive a restart; default: a folder that ends with this run",
        )
        parser.add_argument(
            "--usage-log", metavar="FILE", help="with --catalog: add a JSON line a request; default: none is written"
        )
        parser.add_argument("--no-auth", action="store_true", help="serve everybody; said loudly at the start")
        parser.add_argument(
            "--cors-origin",
            action="append",
            default=[],
            metavar="ORIGIN",
            help="pages from there may use the API, such as https://chat.example.org; may be repeated; * for all",
        )
        parser.add_argument("--no-access-log", action="store_true")
        parser.add_argument(
            "--max-body-mib",
            type=_mib,
            default=BODY_BYTES // 2**20,
            metavar="MIB",
            help="the largest request that is taken, held in memory until an engine answers; default: %(default)s",
        )
        parser.add_argument("--drain-seconds", type=float, default=600.0)
        parser.add_argument("--only-write", type=Path, help=argparse.SUPPRESS)  # by the running router, after SIGHUP

    def handle(self, *args: Any, **options: Any) -> None:
        if options["only_write"]:
            _from_file(Path(options["catalog"]), options["only_write"], options["no_auth"])
            return
        address, _, port = options["listen"].rpartition(":")
        if not address or not port.isdecimal():
            raise CommandError(f"cannot listen on {options['listen']!r}: give HOST:PORT, such as 127.0.0.1:8080")
        _refuse_taken(address.strip("[]"), int(port), options["listen"])
        if not options["catalog"]:
            for name in ("state_dir", "usage_log"):
                if options[name]:
                    option = f"--{name.replace('_', '-')}"
                    raise CommandError(f"cannot use {option} with a control plane: it belongs to --catalog")
            self._become_router(settings.STATE_DIR, options)
        self._alone(options)

    def _alone(self, options: dict[str, Any]) -> NoReturn:
        """From a file, without a control plane."""
        if options["usage_log"]:
            _open_usage_log(Path(options["usage_log"]))
        folder = _own(Path(options["state_dir"])) if options["state_dir"] else _passing_folder()
        try:
            catalog = _from_file(Path(options["catalog"]), folder / "routes.json", options["no_auth"])
            self._tell_what_is_not_kept(catalog, options)
            self._become_router(folder, options)
        except BaseException:
            if not options["state_dir"]:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def _tell_what_is_not_kept(self, catalog: Catalog, options: dict[str, Any]) -> None:
        if not options["usage_log"]:
            self.stderr.write("usage is not written; --usage-log FILE keeps a line of each request")
        monthly = [key.name for key in catalog.keys if "tokens_per_month" in key.limits]
        if monthly and not options["state_dir"]:
            self.stderr.write(
                f"tokens_per_month of {', '.join(monthly)} counts from this start on; --state-dir DIR keeps the counts"
            )

    def _become_router(self, folder: Path, options: dict[str, Any]) -> NoReturn:
        """The same process goes on without Django, of which it would hold 80 MiB for nothing."""
        if options["no_auth"]:
            self.stderr.write(NO_AUTH.format(listen=options["listen"]))
        passed = [f"--cors-origin={origin}" for origin in options["cors_origin"]]
        passed += [f"--{name}" for name in ("no-auth", "no-access-log") if options[name.replace("-", "_")]]
        if not options["catalog"]:
            passed += ["--usage-dir", str(folder / "usage")]
        elif options["usage_log"]:
            passed += ["--usage-log", str(Path(options["usage_log"]).absolute())]
        passed.append(f"--max-body-mib={options['max_body_mib']}")
        reread: list[str] = []
        if options["catalog"]:
            reread = [sys.executable, "-m", "django", "router", "--catalog", str(Path(options["catalog"]).absolute())]
            reread += ["--only-write", str(folder / "routes.json"), *(["--no-auth"] if options["no_auth"] else [])]
        order = {
            "folder": str(folder),
            "listen": options["listen"],
            "processes": max(options["processes"], 1),
            "drain_seconds": options["drain_seconds"],
            "passed": passed,
            "catalog": bool(options["catalog"]),
            "passing": bool(options["catalog"] and not options["state_dir"]),
            "reread": reread,
        }
        argv = [sys.executable, "-m", "routing.server.run", json.dumps(order)]
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, argv, environment())  # noqa: S606  (argv is a list, and nobody else's)


def _mib(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_BODY_MIB:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number from 1 to {MOST_BODY_MIB}")
    return int(text)


def _refuse_taken(address: str, port: int, listen: str) -> None:
    """SO_REUSEPORT would let a second router in beside a stranger; a plain bind says that the port is taken."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for attempt in range(20):
            try:
                probe.bind((address, port))
                return
            except OSError as error:
                if attempt == 19:
                    raise CommandError(f"cannot listen on {listen}: {error.strerror}; give another --listen")
                time.sleep(0.1)  # children of a router that was just killed are still leaving


def _passing_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="llmgw-router-"))


def _own(folder: Path) -> Path:
    """Make it, and take it for as long as this process lives, which is about to become the router: two of them would
    write over each other's routes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CommandError(f"cannot use {folder}: another router runs with it; give another --state-dir")
    except OSError as error:
        raise CommandError(f"cannot use {folder}: {error.strerror}; give another --state-dir")
    os.set_inheritable(handle, True)
    return folder.absolute()


def _open_usage_log(path: Path) -> None:
    try:
        path.open("ab").close()
    except OSError as error:
        raise CommandError(f"cannot write usage to {path}: {error.strerror}; give another --usage-log")


def _from_file(catalog: Path, routes: Path, no_auth: bool) -> Catalog:
    try:
        data = read_yaml_file(catalog)
        parsed = parse_catalog(data)
    except OSError as error:
        raise CommandError(f"cannot read {catalog}: {error.strerror}")
    except UnreadableYaml as error:
        raise CommandError(f"cannot read {catalog} as YAML: {error}")
    except ProfileError as error:
        lines = [problem.sentence for problem in error.problems]
        raise CommandError(f"cannot use {catalog}:\n  " + "\n  ".join(lines))
    if not parsed.keys and not no_auth:
        raise CommandError(
            f"cannot serve {catalog}: it has no keys, so nobody could ask; add one (manage.py router_key NAME "
            "--catalog-entry) or give --no-auth"
        )
    try:
        write(routes, document_of_catalog(parsed))
    except OSError as error:
        raise CommandError(f"cannot write {routes}: {error.strerror}; make room there, or give another --state-dir")
    return parsed
