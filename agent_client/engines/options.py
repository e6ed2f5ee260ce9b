"""The options of each engine's command line, and which of them a word among extra_args would reach.

argparse takes more than exact names: unique prefixes, `--flag=value`, `-n2` for `-n 2`; vLLM also `_` for `-` and
`--config.key`. llama-server takes exact names alone, with `_` for `-`. What the installed version makes of a prefix
depends on its other options, so everything that a word *may* reach counts.
"""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from agent_client.profile import Problem

_JSON = "={}"
_VALUES = {"=": "1", _JSON: "1", "=?": "?", "=*": "*", "=+": "+"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    names: tuple[str, ...]
    values: str = ""  # "" none, 1, ? at most one, * any number, + one or more
    json: bool = False  # its value is JSON

    @property
    def name(self) -> str:
        """The long form that people know."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionTable:
    program: str
    options: tuple[Option, ...]
    by_name: Mapping[str, Option]  # names with `-` where the program's own have `_`
    abbreviations: bool = True  # argparse's ways

    def reached(self, word: str) -> tuple[Option, ...]:
        """The options that one word of a command line may stand for; none for values and unknown flags."""
        name = word.split("=", 1)[0]
        if len(name) < 2 or not name.startswith("-"):
            return ()
        if name.startswith("--"):
            name = canonical(name).split(".", 1)[0] if self.abbreviations else canonical(name)
        if name in self.by_name:
            return (self.by_name[name],)
        if not self.abbreviations or name == "--":
            return ()
        found = [option for other, option in self.by_name.items() if other.startswith(name)]
        if not name.startswith("--") and name[:2] in self.by_name:  # `-n2`
            found.append(self.by_name[name[:2]])
        return tuple(dict.fromkeys(found))


def canonical(name: str) -> str:
    return "--" + name[2:].replace("_", "-") if name.startswith("--") else name


@cache
def table(program: str, *, abbreviations: bool = True) -> OptionTable:
    """From the list that comes with the agent: data/PROGRAM.txt."""
    text = files("agent_client.engines").joinpath("data", f"{program}.txt").read_text(encoding="utf-8")
    options = []
    for line in text.splitlines():
        words = line.split()
        if not words or words[0] == "#":
            continue
        values = _VALUES.get(words[-1], "")
        options.append(Option(names=tuple(words[:-1] if values else words), values=values, json=words[-1] == _JSON))
    by_name = {canonical(name): option for option in options for name in option.names}
    return OptionTable(program=program, options=tuple(options), by_name=by_name, abbreviations=abbreviations)


def refused(arguments: Iterable[str], known: OptionTable, owned: Iterable[str]) -> Iterator[Problem]:
    """Words that would reach an option which llmgw sets itself, or that changes where and how the engine serves.

    An owned name owns its option in all spellings, `--no-` included; also where this version's list lacks it.
    """
    names = {canonical(name) for name in owned}
    options = {known.by_name[name] for name in names if name in known.by_name}
    for word in arguments:
        if _is_number(word):
            continue
        hit = next((option.name for option in known.reached(word) if option in options), None)
        if hit is None:
            hit = next((name for name in sorted(names - known.by_name.keys()) if _is_it(word, name, known)), None)
        if hit is not None:
            yield Problem(
                code="flag_owned",
                field="profile.extra_args",
                text=f"cannot use {word.split('=', 1)[0]} in extra_args: it reaches {hit}, which llmgw sets itself",
                hint=_hint(hit),
            )


def unparsable(arguments: Sequence[str], known: OptionTable) -> Iterator[Problem]:
    """Values that must be JSON and are not. vLLM makes it of `--config.key value` itself; "None" is its default."""
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        reached = () if "." in name else known.reached(word)
        if len(reached) != 1 or not reached[0].json:
            continue
        if not equals:  # a value that is missing is the parser's to tell
            value = next((each for each in arguments[at + 1 : at + 2] if not each.startswith("-")), "None")
        if value == "None":
            continue
        try:
            json.loads(value)
        except (ValueError, RecursionError) as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else "it is nested too deep"
            text = f"cannot use {name} {shlex.quote(value[:80])} in extra_args: its value must be JSON ({why})"
            hint = f"""such as: ["{name}", '{{"key": "value"}}']"""
            yield Problem(code="flag_value", field="profile.extra_args", text=text, hint=hint)


def _is_it(word: str, name: str, known: OptionTable) -> bool:
    given = canonical(word.split("=", 1)[0])
    return given == name or (known.abbreviations and len(given) > 2 and given[:2] == "--" and name.startswith(given))


def _is_number(word: str) -> bool:
    return word.lstrip("-").replace(".", "", 1).isdecimal()


#: The profile's own field for what people put into extra_args; for the others there is none.
_FIELDS = {
    "model": ("--model", "--model-path"),
    "model_revision": ("--revision",),
    "tensor_parallel": ("--tensor-parallel-size", "--tp-size"),
    "pipeline_parallel": ("--pipeline-parallel-size", "--pp-size"),
    "data_parallel": ("--data-parallel-size", "--dp-size"),
    "expert_parallel": ("--enable-expert-parallel", "--ep-size"),
    "nodes": ("--nnodes",),
    "max_model_len": ("--max-model-len", "--context-length", "--ctx-size", "--n_ctx"),
    "gpu_memory_utilization": ("--gpu-memory-utilization", "--mem-fraction-static"),
    "dtype": ("--dtype",),
    "quantization": ("--quantization",),
    "kv_cache_dtype": ("--kv-cache-dtype",),
    "options: {parallel: N}": ("--parallel",),
}


def _hint(name: str) -> str:
    own = next((field for field, names in _FIELDS.items() if name in names), None)
    return f"use the profile's own field `{own}`" if own else "leave it out: the profile has no field for it"
