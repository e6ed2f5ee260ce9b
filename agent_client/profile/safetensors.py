"""The header of a safetensors file as data: how many bytes the whole file must have. No weight is read.

Form: an 8-byte little-endian length, a JSON object with each tensor's place, the tensors without gaps.
"""

import struct

from agent_client.profile.model_facts import FactsError, mapping, read_json

LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000  # the safetensors library takes no longer one


def header_bytes(start: bytes) -> int:
    """From a file's first eight bytes: how long the JSON after them is. Raises FactsError."""
    if len(start) < LENGTH_BYTES:
        raise FactsError(f"it has {len(start)} bytes, not even a header's length")
    (length,) = struct.unpack("<Q", start[:LENGTH_BYTES])
    if not 2 <= length <= MOST_HEADER_BYTES:
        raise FactsError(f"it claims a header of {length} bytes: it is no safetensors file")
    return int(length)


def file_bytes(header: bytes) -> int:
    """From the JSON: how long the whole file is. Raises FactsError."""
    end = 0
    for name, tensor in read_json(header, "its header", most_bytes=MOST_HEADER_BYTES).items():
        if name == "__metadata__":
            continue
        place = mapping(tensor).get("data_offsets")
        if not isinstance(place, list) or len(place) != 2 or not all(type(n) is int and n >= 0 for n in place):
            raise FactsError(f"its header has no place for {name[:80]!r}")
        end = max(end, place[1])
    return LENGTH_BYTES + len(header) + end
