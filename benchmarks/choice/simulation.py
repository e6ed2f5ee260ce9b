"""Replicas with prefix caches, in simulated time: how often prompts are found cached, and how long clients wait.

The choice is the router's own code. A replica works on some requests at once; the first token comes when the part of
the prompt that is not cached has been read. Its cache keeps the newest prompts up to a size, by blocks, as engines do.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from random import Random

from routing.domain import affinity
from routing.domain.select import Load, pick
from routing.table import Endpoint

BLOCK_BYTES = 64  # about 16 tokens
PREFILL_SECONDS_PER_BYTE = 1 / 40_000  # 10,000 tokens/s
DECODE_SECONDS = 0.9
SLOTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    at: float
    body: bytes
    blocks: tuple[int, ...]  # of its prompt, each with all that stands before it

    @classmethod
    def of(cls, at: float, body: bytes) -> "Asked":
        cuts = range(BLOCK_BYTES, len(body), BLOCK_BYTES)
        return cls(at=at, body=body, blocks=tuple(hash(body[:cut]) for cut in cuts))


@dataclass(slots=True)
class Replica:
    cache_blocks: int
    cached: OrderedDict[int, None] = field(default_factory=OrderedDict)
    free_at: list[float] = field(default_factory=lambda: [0.0] * SLOTS)

    def serve(self, asked: Asked) -> tuple[float, float, float]:
        """When the first token and the end come, and the share of the prompt that was cached."""
        blocks = asked.blocks
        hits = next((at for at, block in enumerate(blocks) if block not in self.cached), len(blocks))
        for block in blocks:
            self.cached[block] = None
            self.cached.move_to_end(block)
        while len(self.cached) > self.cache_blocks:
            self.cached.popitem(last=False)
        begin = max(asked.at, heapq.heappop(self.free_at))
        first = begin + (len(asked.body) - hits * BLOCK_BYTES) * PREFILL_SECONDS_PER_BYTE
        heapq.heappush(self.free_at, first + DECODE_SECONDS)
        return first, first + DECODE_SECONDS, hits / max(len(blocks), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    hits: float  # shares of prompts, summed up
    waits: list[float]  # for the first token, sorted

    @classmethod
    def pooled(cls, results: Iterable["Result"]) -> "Result":
        """Of several traces as if they were one: a p99 of some thousand requests differs a lot by chance."""
        results = list(results)
        return cls(hits=sum(each.hits for each in results), waits=sorted(chain(*(each.waits for each in results))))

    @property
    def hit_rate(self) -> float:
        return self.hits / len(self.waits)

    @property
    def p50(self) -> float:
        return self.waits[len(self.waits) // 2]

    @property
    def p99(self) -> float:
        return self.waits[int(len(self.waits) * 0.99)]


def trace(seed: int, *, per_second: float, seconds: float, hot: float) -> list[Asked]:
    """Conversations of some turns behind one of few system prompts; `hot`: the share of the most used one."""
    chance = Random(seed)
    systems = ["".join(chance.choices("abcdefgh ", k=chance.randint(500, 6000))) for _ in range(12)]
    asked: list[Asked] = []
    now = 0.0
    while now < seconds:
        now += chance.expovariate(per_second / 4)
        system = systems[0] if chance.random() < hot else chance.choice(systems[1:])
        text, at = f'{{"messages":["{system}', now
        for _ in range(chance.randint(1, 7)):
            text += '","' + "".join(chance.choices("ijklmnop ", k=chance.randint(100, 900)))
            asked.append(Asked.of(at, (text + '"]}').encode()))
            text += '","' + "".join(chance.choices("qrstuv ", k=chance.randint(200, 1200)))
            at += DECODE_SECONDS + chance.expovariate(1 / 6)
    return sorted(asked, key=lambda each: each.at)


def run(
    requests: list[Asked],
    *,
    replicas: int,
    cache_blocks: int,
    with_affinity: bool,
    choose: Callable[..., Endpoint | None] = pick,
) -> Result:
    """`choose`: the router's own choice, or one to compare it with."""
    fit = [Endpoint(id=f"e{number}", address="a", port=1) for number in range(replicas)]
    loads = {each.id: Load() for each in fit}
    machines = {each.id: Replica(cache_blocks) for each in fit}
    names = {affinity.word_of(each.id): each.id for each in fit}
    memory = [0] * 65_536
    ends: list[tuple[float, str]] = []
    waits, hits = [], 0.0
    for turn, asked in enumerate(requests):
        while ends and ends[0][0] <= asked.at:
            loads[heapq.heappop(ends)[1]].outstanding -= 1
        sums = affinity.beginnings("m", asked.body) if with_affinity else []
        chosen = choose(fit, loads, preferred=names.get(affinity.remembered(memory, sums)) if sums else None)
        assert chosen is not None
        affinity.remember(memory, sums, affinity.word_of(chosen.id))
        loads[chosen.id].outstanding += 1
        loads[chosen.id].turn = turn
        first, end, share = machines[chosen.id].serve(asked)
        heapq.heappush(ends, (end, chosen.id))
        waits.append(first - asked.at)
        hits += share
    return Result(hits=hits, waits=sorted(waits))
