"""Which endpoint has the beginning of a prompt in its cache: remembered by checksums of the prompt's first bytes.

Equal bytes are equal tokens, so nothing is parsed. A checksum stands at each of some lengths; what is remembered is who
got a prompt with that beginning last. It is a hint: a wrong one costs a cache miss, so collisions are left alone.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar
from zlib import crc32

Body = bytes | bytearray

#: Where checksums are taken: close together first, because a turn of a conversation is short, then ever wider.
LENGTHS = (
    *range(256, 2048, 256),
    *range(2048, 8192, 1024),
    *(8192, 10240, 12800, 16384, 20480, 25600, 32768, 40960, 51200, 65536),
)
#: A prompt begins this early, or is not looked for: in a body made for it a search takes longer than its parsing.
SEARCHED_BYTES = 2**20
_PROMPTS = (b'"messages"', b'"prompt"', b'"input"')


class Named(Protocol):
    @property
    def id(self) -> str: ...


class Memory(Protocol):
    """Words by index; whoever writes last is right."""

    def __getitem__(self, index: int) -> int: ...
    def __setitem__(self, index: int, value: int) -> None: ...
    def __len__(self) -> int: ...


T = TypeVar("T", bound=Named)


def beginnings(model: str, body: Body) -> list[int]:
    """Checksums of ever longer beginnings of the prompt; nothing for one that is too short to matter."""
    start = next((at for name in _PROMPTS if (at := body.find(name, 0, SEARCHED_BYTES)) >= 0), -1)
    if start < 0:
        return []
    sums, crc, at = [], crc32(model.encode()), 0
    with memoryview(body) as view:
        size = len(body) - start
        for length in LENGTHS:
            if length > size:
                break
            crc = crc32(view[start + at : start + length], crc)
            sums.append(crc)
            at = length
    return sums


def word_of(endpoint: str) -> int:
    """An endpoint in 31 bits, never 0."""
    return crc32(endpoint.encode()) & 0x7FFFFFFF | 1


def remembered(memory: Memory, sums: Sequence[int]) -> int:
    """The word of who got the longest of these beginnings; 0: nobody."""
    size = len(memory)
    for crc in reversed(sums):
        found = memory[crc % size]
        if found & 0xFFFFFFFF == crc:
            return found >> 32
    return 0


def remember(memory: Memory, sums: Sequence[int], word: int) -> None:
    size, high = len(memory), word << 32
    for crc in sums:
        memory[crc % size] = high | crc


def by_header(value: bytes, endpoints: Sequence[T]) -> T | None:
    """The endpoint of a session, the same in each process and however the others change (highest random weight)."""
    return max(endpoints, key=lambda e: crc32(e.id.encode(), crc32(value)), default=None)
