"""`python sglang_key.py -m sglang.launch_server …`: the same with --api-key, taken from the environment.

SGLang reads its key from nowhere else than its command line, which every user of a machine can see.
"""

import importlib.util
import os
import runpy
import sys

KEY_VARIABLE = "LLMGW_ENGINE_KEY"


def main(argv: list[str]) -> int:
    if argv[:1] != ["-m"] or len(argv) < 2:
        sys.stderr.write("usage: sglang_key.py -m MODULE [argument …]\n")
        return 2
    module, rest = argv[1], argv[2:]
    package = module.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        sys.stderr.write(f"cannot start: the package {package} is not installed for {sys.executable}\n")
        return 1
    key = os.environ.pop(KEY_VARIABLE, "")  # its children need it not
    sys.argv = [module, *rest, *(("--api-key", key) if key else ())]
    runpy.run_module(module, run_name="__main__")
    return 0


if __name__ == "__main__":  # SGLang's children import this file again
    sys.exit(main(sys.argv[1:]))
