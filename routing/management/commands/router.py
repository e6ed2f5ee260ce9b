"""`manage.py router`: checks its arguments and becomes the router's parent, which holds no Django. With --catalog it
needs neither database nor broker."""

import argparse
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

import yaml
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from agent_client.profile import ProfileError, parse_catalog
from routing.feed import document_of_catalog, write
from routing.server.parent import environment

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
        parser.add_argument("--no-auth", action="store_true", help="serve everybody; said loudly at the start")
        parser.add_argument(
            "--cors-origin",
            action="append",
            default=[],
            metavar="ORIGIN",
            help="pages from there may use the API, such as https://chat.example.org; may be repeated; * for all",
        )
        parser.add_argument("--no-access-log", action="store_true")
        parser.add_argument("--drain-seconds", type=float, default=600.0)
        parser.add_argument("--only-write", type=Path, help=argparse.SUPPRESS)  # by the running router, after SIGHUP

    def handle(self, *args: Any, **options: Any) -> None:
        if options["only_write"]:
            return _from_file(Path(options["catalog"]), options["only_write"], options["no_auth"])
        address, _, port = options["listen"].rpartition(":")
        if not address or not port.isdecimal():
            raise CommandError(f"cannot listen on {options['listen']!r}: give HOST:PORT, such as 127.0.0.1:8080")
        _refuse_taken(address.strip("[]"), int(port), options["listen"])
        if not options["catalog"]:
            self._become_router(settings.STATE_DIR, options)
        folder = Path(tempfile.mkdtemp(prefix="llmgw-router-"))
        try:
            _from_file(Path(options["catalog"]), folder / "routes.json", options["no_auth"])
            self._become_router(folder, options)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _become_router(self, folder: Path, options: dict[str, Any]) -> NoReturn:
        """The same process goes on without Django, of which it would hold 80 MiB for nothing."""
        if options["no_auth"]:
            self.stderr.write(NO_AUTH.format(listen=options["listen"]))
        passed = [f"--cors-origin={origin}" for origin in options["cors_origin"]]
        passed += [f"--{name}" for name in ("no-auth", "no-access-log") if options[name.replace("-", "_")]]
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
            "reread": reread,
        }
        argv = [sys.executable, "-m", "routing.server.run", json.dumps(order)]
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, argv, environment())  # noqa: S606  (argv is a list, and nobody else's)


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


def _from_file(catalog: Path, routes: Path, no_auth: bool) -> None:
    try:
        data = yaml.safe_load(catalog.read_text(encoding="utf-8"))
        parsed = parse_catalog(data)
    except OSError as error:
        raise CommandError(f"cannot read {catalog}: {error.strerror}")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {catalog} as YAML: {error}")
    except ProfileError as error:
        lines = [problem.sentence for problem in error.problems]
        raise CommandError(f"cannot use {catalog}:\n  " + "\n  ".join(lines))
    if not parsed.keys and not no_auth:
        raise CommandError(
            f"cannot serve {catalog}: it has no keys, so nobody could ask; add one (manage.py router_key NAME "
            "--catalog-entry) or give --no-auth"
        )
    write(routes, document_of_catalog(parsed))
