"""`manage.py router_feed`: started by the router where there is a control plane; all that the router has of Django."""

import argparse
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from routing.feed import Feed


class Command(BaseCommand):
    help = "Write routes and keys for the router's processes, and take in what they tell. The router starts it."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--folder", type=Path, required=True, help="the router's state")
        parser.add_argument("--told-fd", type=int, required=True, help="a pipe, told when the routes have changed")
        parser.add_argument("--ready-fd", type=int, default=None, help="a pipe, told that the feed runs")
        parser.add_argument("--control-fd", type=int, default=None, help="nothing is listened to here")

    def handle(self, *args: Any, **options: Any) -> None:
        folder: Path = options["folder"]
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # before there are threads: none shall take it
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C is also the parent's, who stops this in its turn

        def changed() -> None:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):  # full: it has been told already
                os.write(options["told_fd"], b"changed\n")

        feed = Feed(folder / "routes.json", folder / "usage", folder / "router", changed)
        feed.start()
        if options["ready_fd"] is not None:
            os.write(options["ready_fd"], b"ready\n")
            os.close(options["ready_fd"])
        signal.sigwait({signal.SIGTERM})
        feed.finish()
