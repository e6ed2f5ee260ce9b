"""What the rules look at: a profile, the model's facts, and the cards it would run on where they are known."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agent_client.profile.model_facts import ModelFacts
from agent_client.profile.problems import Problem
from agent_client.profile.profile import EngineKind, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """None where it is not known. `capability` is CUDA's: (9, 0) for an H100."""

    name: str = ""
    capability: tuple[int, int] | None = None
    memory_total_mib: int | None = None
    memory_free_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    profile: Profile
    facts: ModelFacts
    cards: tuple[Card, ...] = ()
    engine_version: tuple[int, ...] | None = None  # of the installed one; None: not known, the newest is assumed
    served_names: tuple[str, ...] = ()
    shm_free_mib: int | None = None

    @property
    def tp(self) -> int:
        return self.profile.tensor_parallel

    @property
    def pp(self) -> int:
        return self.profile.pipeline_parallel

    @property
    def ep(self) -> int:
        """Ranks that the experts are spread over: vLLM's TP x DP; SGLang's tp-size, as its adapter sets it."""
        if not self.profile.expert_parallel:
            return 1
        return self.tp * (self.profile.data_parallel if self.is_vllm else 1)

    @property
    def is_vllm(self) -> bool:
        return self.profile.engine is EngineKind.VLLM

    @property
    def is_sglang(self) -> bool:
        return self.profile.engine is EngineKind.SGLANG

    @property
    def capability(self) -> tuple[int, int] | None:
        """Of the oldest card: each rank must be able."""
        known = [card.capability for card in self.cards if card.capability is not None]
        return min(known) if known and len(known) == len(self.cards) else None

    @property
    def memory_total_mib(self) -> int | None:
        known = [card.memory_total_mib for card in self.cards if card.memory_total_mib is not None]
        return min(known) if known and len(known) == len(self.cards) else None

    def has_argument(self, *names: str) -> bool:
        """Among extra_args, in either spelling, with or without a value."""
        given = {arg.split("=", 1)[0].replace("_", "-") for arg in self.profile.extra_args}
        return any(name in given or (name.endswith("*") and _starts(given, name[:-1])) for name in names)

    def problem(self, code: str, field: str, text: str, hint: str) -> Problem:
        return Problem(code=code, field=f"profile.{field}", text=f"cannot run {self.profile.model}: {text}", hint=hint)


Rule = Callable[[Subject], Iterator[Problem]]


def _starts(given: set[str], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in given)


def capability_of(text: object) -> tuple[int, int] | None:
    """Of "9.0"; None for what is no version."""
    major, _, minor = str(text or "").partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def divisors(number: int, most: int = 64) -> tuple[int, ...]:
    return tuple(n for n in range(1, most + 1) if number % n == 0)


def shown_divisors(number: int) -> str:
    return ", ".join(map(str, divisors(number)))
