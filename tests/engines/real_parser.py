"""Run by vLLM's own Python: argument lists as JSON on stdin, what its parser makes of each as JSON on stdout."""

import contextlib
import io
import json
import sys


def main() -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser  # type: ignore[import-not-found]
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    before = {name: repr(value) for name, value in vars(parser.parse_args(["m"])).items()}
    options = {name: action.dest for action in parser._actions for name in action.option_strings}
    out = []
    for argv in json.load(sys.stdin):
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                values = vars(parser.parse_args(argv))
            except (SystemExit, Exception):  # whatever it is, it refuses
                out.append(None)
                continue
        out.append(sorted(name for name, value in values.items() if repr(value) != before.get(name)))
    sys.stdout.write("\n" + json.dumps({"options": options, "changed": out}) + "\n")


if __name__ == "__main__":
    main()
