"""`python sglang_key.py -m sglang.launch_server …`: the same with --api-key, taken from the environment.

SGLang reads its key from nowhere else than its command line, which every user of a machine can see.
"""

import os
import runpy
import sys

KEY_VARIABLE = "LLMGW_ENGINE_KEY"


def main(argv: list[str]) -> int:
    if argv[:1] != ["-m"] or len(argv) < 2:
        sys.stderr.write("usage: sglang_key.py -m MODULE [argument …]\n")
        return 2
    module, rest = argv[1], argv[2:]
    key = os.environ.pop(KEY_VARIABLE, "")  # its children need it not
    sys.argv = [module, *rest, *(("--api-key", key) if key else ())]
    try:
        runpy.run_module(module, run_name="__main__")
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        sys.stderr.write(f"cannot start: the package {error.name} is not installed for {sys.executable}\n")
        return 1
    return 0


if __name__ == "__main__":  # SGLang's children import this file again
    sys.exit(main(sys.argv[1:]))
