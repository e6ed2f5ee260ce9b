"""Is the engine ready, and how loaded is it? Plain HTTP to it with short limits, from a thread."""

import http.client
import json
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from agent_client.engines import Miss, Probed, Readiness

#: Requests in the engine, by the names that vLLM, llama.cpp and SGLang give them.
_RUNNING = ("vllm:num_requests_running", "llamacpp:requests_processing", "sglang:num_running_reqs")
_WAITING = ("vllm:num_requests_waiting", "llamacpp:requests_deferred", "sglang:num_queue_reqs")
#: What moves while an engine works. KV use too: a long prefill counts its tokens only at its end.
_MOVING = (
    *("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"),
    *("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    *("sglang:prompt_tokens_total", "sglang:generation_tokens_total", "sglang:token_usage"),
    *("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"),
)


CHAT_PATH = "/v1/chat/completions"
NAMES_TOLD = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    running: int | None
    waiting: int | None
    refused: bool = False  # nobody listens on its port
    moving: tuple[float, ...] | None = None  # equal in two looks: nothing was done in between


def ready(endpoint: str, readiness: Readiness, *, name: str, key: str | None, timeout: float = 10.0) -> Probed:
    """Health page 200, the model listed, and one short real answer; or the first of these that failed."""
    path = readiness.health_path
    try:
        status, body = _get(endpoint, path, key, timeout)
        if status != 200:
            return Probed(miss=Miss.STATUS, told=f"{path} answered {status}{_said(body)}")
        if readiness.models_path:
            path = readiness.models_path
            status, body = _get(endpoint, path, key, timeout)
            if status != 200:
                return Probed(miss=Miss.STATUS, told=f"{path} answered {status}{_said(body)}")
            if name not in (listed := _listed(body)):
                names = ", ".join(sorted(listed)[:NAMES_TOLD]) or "no model"
                return Probed(miss=Miss.UNLISTED, told=f"{path} lists {names}, not {name}")
        if readiness.chat:
            path, timeout = CHAT_PATH, readiness.answer_seconds
            status, body = _asked(endpoint, name, key, timeout)
            # 4xx: the engine is up, but this model does not chat (an embedding model, say).
            if status >= 500:
                return Probed(miss=Miss.CHAT, told=f"{path} answered {status}{_said(body)}")
    except ConnectionRefusedError:
        return Probed(miss=Miss.REFUSED, told=f"{path}: connection refused")
    except TimeoutError:
        return Probed(miss=Miss.SILENT, told=f"{path} gave no answer within {timeout:g} s")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Probed(miss=Miss.BROKEN, told=f"{path}: {str(error) or type(error).__name__}")
    return Probed()


def load(endpoint: str, *, key: str | None, timeout: float = 2.0) -> Load:
    """Figures of /metrics; None where the engine gives none."""
    try:
        status, body = _get(endpoint, "/metrics", key, timeout)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Load(running=None, waiting=None, refused=isinstance(error, ConnectionRefusedError))
    text = body.decode(errors="replace") if status == 200 else ""
    moving = tuple(value for name in _MOVING if (value := _figure(text, (name,))) is not None)
    running, waiting = _figure(text, _RUNNING), _figure(text, _WAITING)
    return Load(
        running=None if running is None else int(running),
        waiting=None if waiting is None else int(waiting),
        moving=moving or None,
    )


def _asked(endpoint: str, name: str, key: str | None, timeout: float) -> tuple[int, bytes]:
    body = {"model": name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    return _request(endpoint, "POST", CHAT_PATH, key, timeout, json.dumps(body).encode())


def _said(body: bytes) -> str:
    """The beginning of an answer, on one line. Cut only where it is told, after what is secret in it was hidden."""
    text = " ".join(body[:4_000].decode(errors="replace").split())
    return f": {text}" if text else ""


def _listed(body: bytes) -> set[str]:
    data = json.loads(body)
    models = data.get("data") if isinstance(data, dict) else None
    models = models if isinstance(models, list) else []
    names = {str(model.get("id")) for model in models if isinstance(model, dict)}
    for model in models:
        if isinstance(model, dict) and isinstance(model.get("aliases"), list):
            names.update(map(str, model["aliases"]))
    return names


def _figure(text: str, names: tuple[str, ...]) -> float | None:
    total = None
    for name in names:
        for match in re.finditer(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? ([0-9.eE+-]+)", text, re.MULTILINE):
            total = (total or 0.0) + float(match.group(1))
    return total


def _get(endpoint: str, path: str, key: str | None, timeout: float) -> tuple[int, bytes]:
    return _request(endpoint, "GET", path, key, timeout, None)


def _request(
    endpoint: str, method: str, path: str, key: str | None, timeout: float, body: bytes | None
) -> tuple[int, bytes]:
    parts = urlsplit(endpoint)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    headers = {"Content-Type": "application/json"} if body else {}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    try:
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        return response.status, response.read(1_000_000)
    finally:
        connection.close()
