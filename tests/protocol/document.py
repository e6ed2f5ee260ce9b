"""Writes docs/protocol.md from the samples: `python -m tests.protocol.document`."""

import json
from pathlib import Path

from agent_client.protocol.codec import encode
from agent_client.protocol.messages import FROM_AGENT, FROM_SERVER, SUBPROTOCOL
from tests.protocol.samples import SAMPLES

PATH = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"


def text() -> str:
    lines = [
        "# The agent's stream",
        "",
        f"WebSocket `/agent/v1/stream`, subprotocol `{SUBPROTOCOL}`, JSON text frames of at most 1 MiB.",
        "Unknown fields pass; an unknown type is answered with `error`; a broken frame closes with its reason.",
        "Written by `python -m tests.protocol.document`; a test keeps it fresh.",
    ]
    for sample in SAMPLES:
        ways = [name for name, kinds in (("agent", FROM_AGENT), ("server", FROM_SERVER)) if type(sample) in kinds]
        frame = json.dumps(json.loads(encode(sample, seq=1)), indent=1).replace("CANARY-", "…")
        doc = (type(sample).__doc__ or "").strip()
        about = "" if doc.startswith(type(sample).__name__ + "(") else doc
        lines += ["", f"## {sample.TYPE} (from {' and '.join(ways)})", "", *([about, ""] if about else [])]
        lines += ["```json", frame, "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
