"""Captured outputs with what each must become; origins in data/SOURCES.md, keys in data/README.md."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "nvidia_smi"


def text(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def expected(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(text(f"{name.rpartition('.')[0]}.expected.json"))
    return data


XML = sorted(path.name for path in DATA.glob("*.xml"))
CSV = sorted(path.name for path in DATA.glob("*.csv"))
FAILURES: list[dict[str, Any]] = json.loads(text("failures.json"))
