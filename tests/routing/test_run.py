"""`manage.py router` becomes a parent that holds no Django; a catalog file is read anew after SIGHUP."""

import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.e2e.harness import ROOT, wait_for
from tests.support.ports import free_port


@pytest.mark.parametrize("module", ["routing.server.run", "routing.server.__main__"])
def test_the_routers_processes_hold_no_django(module: str) -> None:
    code = f"import sys, {module}; print([name for name in sys.modules if name.split('.')[0] in ('django', 'yaml')])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.heavy  # each change is read by a whole program of its own
def test_a_catalog_that_changes_while_the_router_runs(tmp_path: Path) -> None:
    catalog, port = tmp_path / "catalog.yaml", free_port()
    env = {**os.environ, "TMPDIR": str(tmp_path)}

    def write(*names: str) -> None:
        models = [{"name": name, "endpoints": [{"url": "http://127.0.0.1:9"}]} for name in names]
        catalog.write_text(yaml.safe_dump({"models": models}))

    def models() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10) as answer:
            return str(answer.read())

    write("first")
    argv = [sys.executable, "manage.py", "router", "--catalog", str(catalog), "--no-auth"]
    argv += ["--listen", f"127.0.0.1:{port}", "--drain-seconds", "1"]
    assert tempfile.gettempdir() != str(tmp_path)
    with (tmp_path / "log").open("wb") as log:
        router = subprocess.Popen(argv, cwd=ROOT, env=env, stdout=log, stderr=log)
    try:
        wait_for(lambda: "first" in models(), "the router")
        assert list(tmp_path.glob("llmgw-router-*"))
        write("first", "second")
        router.send_signal(signal.SIGHUP)
        wait_for(lambda: "second" in models(), "the new model")
        catalog.write_text("models: [")
        router.send_signal(signal.SIGHUP)
        wait_for(lambda: b"the old routes stay" in (tmp_path / "log").read_bytes(), "what is wrong")
        assert "second" in models()
        router.terminate()
        assert router.wait(30) == 0
        assert not list(tmp_path.glob("llmgw-router-*"))
    finally:
        router.kill()
        router.wait()
