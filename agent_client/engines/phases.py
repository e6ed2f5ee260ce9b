"""How far an engine's start has come, out of its own lines. Pure; the order of the phases is the order of the table."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agent_client.engines.lines import read_line

PHASES = ("starting", "weights", "compiling", "cache", "capturing", "warm-up", "serving")

#: Pattern → phase. vLLM 0.32 and older, SGLang 0.5, llama.cpp, xllamacpp. A line may name what is yet to come, or not
#: to come at all ("Enforce eager set, disabling … JIT kernel warmup"): taken for a phase it would hide those before.
_ROWS: tuple[tuple[str, str], ...] = (
    (r"Starting to load model|Loading \w+ checkpoint shards|Multi-thread loading shards", "weights"),
    (r"Load weight begin|load_tensors: loading model tensors|llama_model_loader: loaded meta data", "weights"),
    (r"Loading weights took|Model loading took|Load weight end", "weights"),
    (r"Dynamo bytecode transform|Compiling a graph for|torch\.compile takes|Start compiling", "compiling"),
    (r"Available KV cache memory:|KV cache size:|KV Cache is allocated|max_total_num_tokens=", "cache"),
    (r"llama_kv_cache|llama_context: n_ctx", "cache"),
    (r"Capturing CUDA graph|Capture (?:\w+ )*[cC][uU][dD][aA] graph|Capturing batches", "capturing"),
    (r"Graph capturing finished|init engine \(profile, create kv cache, warmup model\) took", "warm-up"),
    (r"^Warming up|^JIT kernel warmup (?:starting|finished)|^Compile and warming up model", "warm-up"),
    (r"warming up the model with an empty run", "warm-up"),
    (r"Starting vLLM (?:API )?server|Application startup complete|fired up and ready to roll", "serving"),
    (r"main: model loaded|listening on http", "serving"),
)
_TABLE = tuple((re.compile(pattern), PHASES.index(phase)) for pattern, phase in _ROWS)
_PERCENT = re.compile(r"(\d{1,3})% (?:Completed \|)|(\d{1,3})%\|")
_ENDS = re.compile(r"Loading weights took|Model loading took|Load weight end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    name: str
    place: int
    share: float | None = None  # of this phase, where the engine draws a bar


def farthest(lines: Sequence[str]) -> Phase | None:
    """The farthest point that these lines tell of."""
    best: Phase | None = None
    for line in lines:
        found = read_phase(line)
        if found is not None and (best is None or _key(found) > _key(best)):
            best = found
    return best


def read_phase(line: str) -> Phase | None:
    words = read_line(line).words
    for pattern, place in _TABLE:
        if pattern.search(words):
            return Phase(name=PHASES[place], place=place, share=1.0 if _ENDS.search(words) else _share(words))
    return None


def _share(words: str) -> float | None:
    match = _PERCENT.search(words)
    return None if match is None else min(int(match[1] or match[2]), 100) / 100


def _key(phase: Phase) -> tuple[int, float]:
    return phase.place, phase.share or 0.0
