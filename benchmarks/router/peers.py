"""The routers that are measured: how each is had, and how it is started before one engine, at its fastest."""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from routing.keys import digest
from tests.e2e.harness import ROOT
from tests.support.ports import free_port


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a router shall run."""

    folder: Path  # its own, for its files
    cache: Path  # kept between runs: what was installed
    port: int
    engine_port: int
    key: str  # what the clients will present


class Absent(Exception):
    """The router can't be had here."""


Command = Callable[[Place], list[str]]  # writes its configuration, installs what is missing


def nginx(place: Place) -> list[str]:
    """One worker, connections to the engine kept, nothing buffered, no log: the floor for any router."""
    config = f"""
daemon off;
{"user root;" if os.geteuid() == 0 else ""}
worker_processes 1;
pid {place.folder}/pid;
error_log {place.folder}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {place.folder}/body;
  proxy_temp_path {place.folder}/proxy;
  fastcgi_temp_path {place.folder}/fastcgi;
  uwsgi_temp_path {place.folder}/uwsgi;
  scgi_temp_path {place.folder}/scgi;
  client_max_body_size 64m;
  client_body_buffer_size 64k;
  keepalive_requests 1000000000;
  upstream engine {{ server 127.0.0.1:{place.engine_port}; keepalive 2048; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{place.port} backlog=4096;
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""
    path = place.folder / "nginx.conf"
    path.write_text(config)
    return [_system("nginx"), "-c", str(path), "-e", f"{place.folder}/error.log"]


def haproxy(place: Place) -> list[str]:
    """One thread, connections to the engine shared by all clients, no log."""
    config = f"""
global
  nbthread 1
  maxconn 8192
defaults
  mode http
  http-reuse always
  timeout connect 2s
  timeout client 600s
  timeout server 600s
frontend clients
  bind 127.0.0.1:{place.port} backlog 4096
  default_backend engine
backend engine
  server engine 127.0.0.1:{place.engine_port}
"""
    path = place.folder / "haproxy.cfg"
    path.write_text(config)
    return [_system("haproxy"), "-db", "-f", str(path)]


def rust_router(name: str, place: Place, *, verb: tuple[str, ...] = (), level: str) -> list[str]:
    """vllm-router, and sglang-router whose options are the same. The cheapest policy, and no log."""
    argv = [str(_installed(place.cache, name) / name), *verb, "--host", "127.0.0.1", "--port", str(place.port)]
    argv += ["--worker-urls", f"http://127.0.0.1:{place.engine_port}", "--policy", "round_robin"]
    argv += ["--prometheus-port", str(free_port()), "--log-level", level]
    return [*argv, "--request-timeout-secs", "36000"]


def litellm(place: Place) -> list[str]:
    path = place.folder / "litellm.yaml"
    target = {"model": "openai/m", "api_base": f"http://127.0.0.1:{place.engine_port}/v1", "api_key": "none"}
    settings = {"model_list": [{"model_name": "m", "litellm_params": target}]}
    path.write_text(yaml.safe_dump(settings))
    program = _installed(place.cache, "litellm", "litellm[proxy]") / "litellm"
    return [str(program), "--config", str(path), "--host", "127.0.0.1", "--port", str(place.port), "--num_workers", "1"]


def llmgw(place: Place, *, checkout: Path = ROOT, no_auth: bool = False) -> list[str]:
    """Ours as users start it, with a key in the file: access log, usage, ids and metrics are on."""
    path = place.folder / "catalog.yaml"
    _, prefix, _ = place.key.split("_", 2)
    catalog = {
        "models": [{"name": "m", "endpoints": [{"url": f"http://127.0.0.1:{place.engine_port}"}]}],
        "keys": [{"name": "bench", "prefix": prefix, "sha256": digest(place.key)}],
    }
    path.write_text(yaml.safe_dump(catalog))
    argv = [sys.executable, str(checkout / "manage.py"), "router", "--catalog", str(path), "--processes", "1"]
    return [*argv, "--listen", f"127.0.0.1:{place.port}", *(["--no-auth"] if no_auth else [])]


PEERS: dict[str, Command] = {
    "nginx": nginx,
    "haproxy": haproxy,
    "vllm-router": partial(rust_router, "vllm-router", level="error"),
    "sglang-router": partial(rust_router, "sglang-router", verb=("launch",), level="error"),
    "litellm": litellm,
    "llmgw": llmgw,
    "llmgw-no-auth": partial(llmgw, no_auth=True),
}
USUAL = ("nginx", "haproxy", "vllm-router", "sglang-router", "llmgw")


def _system(name: str) -> str:
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin")
    if path is None:
        raise Absent(f"{name} is left out: it is not installed (apt-get install {name})")
    return path


def _installed(cache: Path, name: str, package: str = "") -> Path:
    """The folder with the programs of a package, installed in an environment of its own when it is missing."""
    folder = cache / name
    if not (folder / "bin" / name).exists():
        print(f"installing {name} …", flush=True)
        try:
            venv.create(folder, with_pip=True, clear=True)
            pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, package or name], check=True, capture_output=True, text=True)
        except (subprocess.CalledProcessError, OSError) as error:
            lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            raise Absent(f"{name} is left out: it can't be installed ({lines[-1]})") from None
    return folder / "bin"
