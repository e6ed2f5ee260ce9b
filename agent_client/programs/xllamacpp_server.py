"""llama.cpp's own HTTP server out of the `xllamacpp` wheel, for machines that have pip and no llama-server."""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any


def main() -> int:
    parser = argparse.ArgumentParser(prog="xllamacpp_server", allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alias", default="", help="served names, comma-separated")
    parser.add_argument("--ctx-size", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="0: all of this machine's cores but one")
    parser.add_argument("--cache-type-k", default="", help="such as f16 or q8_0")
    parser.add_argument("--cache-type-v", default="")
    parser.add_argument("--split-mode", choices=("none", "layer", "row"), help="how several cards share a model")
    parser.add_argument("--metrics", action="store_true")
    args = parser.parse_args()
    try:
        import xllamacpp
    except ImportError:
        return _fail("cannot start: the package xllamacpp is not installed; pip install xllamacpp")
    if not os.path.isfile(args.model):
        return _fail(f"cannot start: there is no model file {args.model}")
    # SIGTERM must be blocked before llama.cpp starts its threads, or one of them takes it.
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.hostnames = [args.host]
    params.port = args.port
    params.n_parallel = args.parallel
    if args.ctx_size:
        params.n_ctx = args.ctx_size
    params.cpuparams.n_threads = args.threads or threads_for(os.sched_getaffinity(0), _siblings)
    try:
        if args.cache_type_k:
            params.cache_type_k = _cache_type(xllamacpp, args.cache_type_k)
        if args.cache_type_v:
            params.cache_type_v = _cache_type(xllamacpp, args.cache_type_v)
    except AttributeError as error:
        return _fail(f"cannot start: llama.cpp has no such cache type ({error})")
    if args.split_mode:
        params.split_mode = ("none", "layer", "row").index(args.split_mode)  # enum llama_split_mode
    params.endpoint_metrics = args.metrics
    key = os.environ.get("LLAMA_API_KEY")
    if key:
        params.api_keys = [key]
    names = {name for name in args.alias.split(",") if name}
    if names:
        params.model_alias = names
    try:
        server = xllamacpp.Server(params)  # loads the model; ready when it returns
    except Exception as error:
        return _fail(f"cannot start: llama.cpp refused {args.model}: {error}")
    sys.stderr.write(f"model loaded; listening on http://{args.host}:{args.port}\n")
    sys.stderr.flush()
    while not stop.wait(3600):
        pass
    del server
    return 0


def threads_for(cpus: Collection[int], siblings: Callable[[int], str]) -> int:
    """How many threads compute, where nobody said: one for each core of these CPUs, and one core stays free.

    llama.cpp's threads wait for one another after each operation, spinning: on cores that others use as well, a token
    takes as long as the slowest of them (measured on two busy cores: 60 tokens in 17 s with two threads, in 2.6 s with
    one). `siblings` names the hardware threads of a CPU's core.
    """
    cores = len({siblings(cpu) for cpu in cpus})
    return max(1, min(cores, len(cpus) - 1))


def _siblings(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:  # a container may hide it
        return str(cpu)


def _cache_type(library: Any, name: str) -> Any:
    """ggml's own; raises AttributeError."""
    return getattr(library.ggml_type, f"GGML_TYPE_{name.upper()}")


def _fail(text: str) -> int:
    sys.stderr.write(text + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
