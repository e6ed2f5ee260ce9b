"""Starts SGLang's own server with the key that the environment holds: on a command line every user could read it."""

import os
import runpy
import sys

KEY_VARIABLE = "LLMGW_ENGINE_KEY"
MODULE = "sglang.launch_server"


def main() -> int:
    key = os.environ.pop(KEY_VARIABLE, "")  # its children need it not
    sys.argv = [MODULE, *sys.argv[1:], *(("--api-key", key) if key else ())]
    try:
        runpy.run_module(MODULE, run_name="__main__")
    except ModuleNotFoundError as error:
        if error.name not in ("sglang", MODULE):
            raise
        sys.stderr.write("cannot start: the package sglang is not installed for this Python\n")
        return 1
    return 0


if __name__ == "__main__":  # its children import this file again
    sys.exit(main())
