"""`manage.py router`: the router's parent. With --catalog it needs neither database nor broker."""

import argparse
import asyncio
import logging
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from agent_client.profile import ProfileError, parse_catalog
from routing.feed import Feed, document_of_catalog, write
from routing.server.listening import open_listener
from routing.server.parent import ChildSet

log = logging.getLogger("routing")

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

    def handle(self, *args: Any, **options: Any) -> None:
        address, _, port = options["listen"].rpartition(":")
        if not address or not port.isdecimal():
            raise CommandError(f"cannot listen on {options['listen']!r}: give HOST:PORT, such as 127.0.0.1:8080")
        _refuse_taken(address.strip("[]"), int(port), options["listen"])
        if not options["catalog"]:
            self._serve(settings.STATE_DIR, options)
            return
        with tempfile.TemporaryDirectory(prefix="llmgw-router-") as folder:
            _from_file(Path(options["catalog"]), Path(folder) / "routes.json", options["no_auth"])
            self._serve(Path(folder), options)

    def _serve(self, folder: Path, options: dict[str, Any]) -> None:
        if options["no_auth"]:
            self.stderr.write(NO_AUTH.format(listen=options["listen"]))
        routes, count = folder / "routes.json", max(options["processes"], 1)
        argv = ["--routes", str(routes), "--listen", options["listen"], "--usage-dir", str(folder / "usage")]
        argv += ["--shared-dir", str(folder / "router"), "--drain-seconds", str(options["drain_seconds"])]
        argv += [f"--cors-origin={origin}" for origin in options["cors_origin"]]
        argv += [f"--{name}" for name in ("no-auth", "no-access-log") if options[name.replace("-", "_")]]
        try:
            listeners = [open_listener(options["listen"]) for _ in range(count)]
        except OSError as error:
            raise CommandError(f"cannot listen on {options['listen']}: {error.strerror}; give another --listen")
        # What a child needs after its drain is little: it writes the last usage.
        children = ChildSet(argv, count, stop_seconds=options["drain_seconds"] + 10, listeners=listeners)

        def renew() -> None:
            if options["catalog"]:
                _reread(Path(options["catalog"]), routes, options["no_auth"], children)
            children.renew()

        if options["catalog"]:
            code = asyncio.run(_run(children, renew))
        else:
            feed = Feed(routes, folder / "usage", folder / "router", children.notify_reload)
            feed.start()
            code = asyncio.run(_run(children, renew))
            feed.finish()
        if code:
            raise CommandError(f"cannot serve on {options['listen']}: the router's processes ended with code {code}")


async def _run(children: ChildSet, on_hangup: Any) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, children.stop)
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    return await children.run()


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


def _reread(catalog: Path, routes: Path, no_auth: bool, children: ChildSet) -> None:
    try:
        _from_file(catalog, routes, no_auth)
    except CommandError as error:
        sys.stderr.write(f"{error}; the old routes stay\n")
        return
    children.notify_reload()
