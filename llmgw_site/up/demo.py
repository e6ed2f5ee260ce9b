"""The demo of `manage.py up`: a small model and its first answer, which the control plane does not depend on."""

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmgw_site.up import first_run
from llmgw_site.up.children import say

ANSWER_SECONDS, ASK_SECONDS = 120.0, 0.5


def add_model() -> str | None:
    """The name of the demo's model in the catalog, where it is put only while that is empty; None: it is not there."""
    from fleet.models import CatalogModel
    from fleet.services import catalog

    found = first_run.demo_model()
    if not CatalogModel.objects.exists():
        catalog.save_entry(catalog.read_entry(first_run.demo_entry(found)), actor="up")
    rows = {row.name: row for row in CatalogModel.objects.filter(name__in=first_run.DEMO_NAMES, leaving=False)}
    row = next((rows[name] for name in first_run.DEMO_NAMES if name in rows), None)
    if row is None:
        return None
    if row.name == first_run.ECHO_NAME and found is not None:
        say("model:  the echo engine: it has no model")
    elif row.name == first_run.ECHO_NAME:
        say("model:  the packages of the demo model are not installed, so the echo engine answers: it has no model")
    else:
        say(f"model:  {Path((row.profile or {}).get('model', row.name)).name} on this machine's CPU")
    return row.name


def tell_first_answer(name: str, router: str, key: str, logs: Path, look: Callable[[], None]) -> None:
    """An answer, or why there is none, and the line that asks for one. `look` keeps the processes going."""
    asked = {
        "model": name,
        "stream": True,
        "max_tokens": 60,
        "temperature": 0,  # the likeliest words: a model this small wanders otherwise
        "messages": [{"role": "user", "content": "What is a GPU?"}],
    }
    text = _first_answer(router, key, asked, look)
    said = f"none came within {ANSWER_SECONDS:g} s: `manage.py explain {name}` says why, and so may {logs}"
    say(f"answer: {text or said}")
    say(
        f"try:    curl -N http://{router}/v1/chat/completions -H 'Authorization: Bearer {key}' -d '{json.dumps(asked)}'"
    )


def _first_answer(router: str, key: str, asked: dict[str, Any], look: Callable[[], None]) -> str:
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        look()
        if text := _ask(router, key, asked):
            return text
        time.sleep(ASK_SECONDS)
    return ""


def _ask(router: str, key: str, asked: dict[str, Any]) -> str:
    """The words of a streamed answer, or nothing while the model is not ready."""
    request = urllib.request.Request(
        f"http://{router}/v1/chat/completions",
        data=json.dumps(asked).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    words = []
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310  (an http URL of our own)
            for line in answer:
                if line.startswith(b"data: {"):
                    choices = json.loads(line[6:]).get("choices") or [{}]
                    words.append(choices[0].get("delta", {}).get("content") or "")
    except (OSError, ValueError):
        return ""
    return "".join(words).strip()
