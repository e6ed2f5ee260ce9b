"""Commands that tell of what others named: nothing of it reaches the terminal as anything but text."""

import sys
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, OutputWrapper

from agent_client.plain_data import printable


class _Plain(OutputWrapper):
    def write(  # type: ignore[override]  # Django takes more than a stream does
        self, msg: str = "", style_func: Callable[[str], str] | None = None, ending: str | None = None
    ) -> None:
        super().write(printable(msg), style_func, ending)


class PlainCommand(BaseCommand):
    def __init__(self, stdout: Any = None, stderr: Any = None, **more: Any) -> None:
        super().__init__(stdout, stderr, **more)
        self.stdout, self.stderr = _Plain(stdout or sys.stdout), _Plain(stderr or sys.stderr)
        self.stderr.style_func = self.style.ERROR

    def execute(self, *args: Any, **options: Any) -> Any:
        if options.get("stdout"):
            self.stdout = _Plain(options.pop("stdout"))
        if options.get("stderr"):
            self.stderr = _Plain(options.pop("stderr"))
        return super().execute(*args, **options)
