"""The command of the web process, for `manage.py up`, for service files, and for tests."""

import sys

#: Frames above 1 MiB are refused by the session with a sentence; Daphne's own limit, above that, only drops.
DROP_BYTES = str(4 * 1024 * 1024)


def daphne_argv(address: str, port: str) -> list[str]:
    argv = [sys.executable, "-m", "daphne", "-b", address, "-p", port]
    # Daphne's default closes every stream after a day.
    argv += ["--websocket_timeout", "-1"]
    argv += ["--websocket-max-message-size", DROP_BYTES, "--websocket-max-frame-size", DROP_BYTES]
    return [*argv, "llmgw_site.asgi:application"]
