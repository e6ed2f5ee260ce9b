"""What a failed attempt left behind: what stands against it, its last words, its command and its surroundings."""

import json
import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from fleet.admin.display import facts, folded, log, table, when
from fleet.domain.words import duration
from fleet.models import Replica

#: Of the record: told in their own places.
_PLACED = {"argv", "env", "head", "exception", "seconds", "oom_killed", "problems"}


def both(replica: Replica, now: datetime) -> SafeString | str:
    """The latest first, since that is what is to be mended; the first one where it was another."""
    first, latest = replica.first_failure, replica.latest_failure
    if not latest:
        return "-"
    if not first or first.get("attempt") == latest.get("attempt"):
        return _one("latest", latest, now)
    if first.get("code") == latest.get("code"):
        since = format_html("<p>Attempt {} failed the same way {}.</p>", first.get("attempt"), _at(first, now))
        return format_html("{}{}", _one("latest", latest, now), since)
    earlier = folded("first-failure", f"The first failure was another: {first.get('code')}", _one("first", first, now))
    return format_html("{}{}", _one("latest", latest, now), earlier)


def _one(key: str, failure: Mapping[str, Any], now: datetime) -> SafeString:
    record = failure.get("record") or {}
    told = format_html_join(
        "",
        '<li><p class="fleet-cause">{}</p>{} <code class="fleet-quiet">{}</code></li>',
        (
            (problem["text"], _hint(problem.get("hint", "")), problem.get("code", ""))
            for problem in _problems(failure, record)
        ),
    )
    around = ", ".join(_facts(failure, record))
    exception = record.get("exception") or ""
    parts: list[SafeString] = [format_html('<ul class="fleet-problems">{}</ul>', told)]
    parts.append(
        format_html('<p class="fleet-quiet">Attempt {}, {}; {}</p>', failure["attempt"], _at(failure, now), around)
    )
    if exception:
        parts.append(format_html("<p>The line that matters:</p>{}", log([exception])))
    if failure.get("tail"):
        parts.append(folded(f"{key}-tail", f"Its last {len(failure['tail'])} lines", log(failure["tail"])))
    if record.get("head"):
        parts.append(folded(f"{key}-head", f"Its first {len(record['head'])} lines", log(record["head"])))
    if record.get("argv"):
        env = table(("name", "value"), sorted((record.get("env") or {}).items()))
        body = format_html("{}{}", log([shlex.join(map(str, record["argv"]))]), env)
        parts.append(folded(f"{key}-command", "The command that ran", body))
    rest = [(name, _plain(value)) for name, value in record.items() if name not in _PLACED]
    if rest:
        parts.append(folded(f"{key}-around", "What was around it", facts(rest)))
    return format_html_join("", "{}", ((part,) for part in parts))


def _problems(failure: Mapping[str, Any], record: Mapping[str, Any]) -> list[dict[str, str]]:
    """Each thing that stands against it; an agent that lists none has told one."""
    listed = record.get("problems")
    found = [each for each in listed if isinstance(each, dict) and each.get("text")] if isinstance(listed, list) else []
    text = failure.get("reason") or failure.get("code") or "it failed"
    return found or [{"text": text, "hint": failure.get("hint", ""), "code": failure.get("code", "")}]


def _facts(failure: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[str]:
    yield f"rank {failure.get('rank', 0)} on {failure.get('node') or 'an unknown node'}"
    yield f"revision {failure.get('revision')}"
    if failure.get("engine_version"):
        yield f"engine {failure['engine_version']}"
    if failure.get("agent_version"):
        yield f"agent {failure['agent_version']}"
    if isinstance(record.get("seconds"), int | float):
        yield f"it ran for {duration(record['seconds'])}"
    if failure.get("exit_code") is not None:
        yield f"exit code {failure['exit_code']}"
    if failure.get("exit_signal") is not None:
        yield f"ended by signal {failure['exit_signal']}"
    if record.get("oom_killed"):
        yield "killed by the kernel for memory"


def _hint(text: str) -> SafeString | str:
    return format_html("<p>Hint: {}</p>", text) if text else ""


def _at(failure: Mapping[str, Any], now: datetime) -> SafeString | str:
    at = parse_datetime(str(failure.get("at", "")))
    return when(at, now) if at else "at an unknown time"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
