"""Models by hub id: fetched whole, compared with the hub's figures, by one process a folder."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from agent_client import weights
from agent_client.config import AgentConfig, ConfigError, HubPolicy, Policy, load
from agent_client.profile import Profile, ProfileError, parse_profile
from tests.support.hub import COMMIT, Hub, running

LARGE = bytes(range(256)) * 160


@pytest.fixture
def hub() -> Iterator[Hub]:
    files = {
        "config.json": b'{"model_type": "llama"}',
        "model-00001-of-00002.safetensors": LARGE,
        "model-00002-of-00002.safetensors": LARGE[:5000],
        "pytorch_model.bin": LARGE,
        "tokenizer.json": b"{}" * 700,
    }
    with running(Hub(files)) as found:
        yield found


def config(tmp_path: Path, hub: Hub, **policy: Any) -> AgentConfig:
    rules = HubPolicy(cache=tmp_path / "cache", endpoint=hub.url, **policy)
    return AgentConfig(
        server="ws://127.0.0.1:1",
        node_id="gpu-01",
        mgmt_addr="127.0.0.1",
        state_dir=tmp_path / "state",
        policy=Policy(hub=rules),
    )


def profile(**fields: Any) -> Profile:
    return parse_profile({"engine": "vllm", "model": "org/tiny", **fields})


async def fetch(
    where: AgentConfig, wanted: Profile, *, stall: float = 30.0, secrets: dict[str, str] | None = None, seen: Any = None
) -> Profile | weights.NotFetched:
    note = seen.append if seen is not None else lambda each: None
    environ = {"PATH": os.environ["PATH"], "HOME": str(where.state_dir)}
    return await weights.fetch(where, wanted, secrets or {}, on_progress=note, stall_seconds=stall, environ=environ)


def files_of(found: Profile | weights.NotFetched) -> list[str]:
    assert isinstance(found, Profile), found
    folder = Path(found.model)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def test_a_model_comes_whole_in_one_format_and_is_not_asked_for_again(tmp_path: Path, hub: Hub) -> None:
    found = await fetch(config(tmp_path, hub), profile())
    assert files_of(found) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "tokenizer.json",
    ]
    hub.gets.clear()
    assert await fetch(config(tmp_path, hub), profile()) == found
    assert hub.gets == []


async def test_bytes_that_differ_from_the_hubs_hash_are_fetched_again(tmp_path: Path, hub: Hub) -> None:
    hub.garble["model-00001-of-00002.safetensors"] = 1
    found = await fetch(config(tmp_path, hub), profile())
    assert isinstance(found, Profile)
    assert (Path(found.model) / "model-00001-of-00002.safetensors").read_bytes() == LARGE
    assert hub.gets.count("model-00001-of-00002.safetensors") == 2


async def test_a_disk_that_garbles_twice_is_said_by_the_files_name(tmp_path: Path, hub: Hub) -> None:
    hub.garble["tokenizer.json"] = 9
    found = await fetch(config(tmp_path, hub), profile())
    assert isinstance(found, weights.NotFetched)
    assert (found.code, "tokenizer.json" in found.text) == ("model_corrupt", True)


async def test_a_file_changed_since_is_noticed_and_mended(tmp_path: Path, hub: Hub) -> None:
    found = await fetch(config(tmp_path, hub), profile())
    assert isinstance(found, Profile)
    path = Path(found.model) / "config.json"
    path.resolve().write_bytes(b'{"model_type": "evil"}')
    await fetch(config(tmp_path, hub), profile())
    assert path.read_bytes() == hub.files["config.json"]


async def test_two_agents_with_one_disk_fetch_once_and_both_have_it_whole(tmp_path: Path, hub: Hub) -> None:
    hub.seconds_per_kib = 0.02
    seen: list[weights.Fetching] = []
    one, two = await asyncio.gather(
        fetch(config(tmp_path, hub), profile()), fetch(config(tmp_path, hub), profile(), seen=seen)
    )
    assert files_of(one) == files_of(two)
    assert sorted(hub.gets) == sorted({*hub.gets})
    assert hub.sent["model-00001-of-00002.safetensors"] == len(LARGE)


async def test_who_waits_tells_how_far_the_other_one_is(tmp_path: Path, hub: Hub) -> None:
    """So that a wait of an hour is seen to go on, and is not given up for one that stands still."""
    locks = tmp_path / "cache" / ".locks" / "llmgw"
    locks.mkdir(parents=True)
    note = locks / "models--org--tiny.progress"
    seen: list[weights.Fetching] = []
    with FileLock(locks / "models--org--tiny.lock"):  # in the place of another agent's process
        waiting = asyncio.create_task(fetch(config(tmp_path, hub), profile(), seen=seen))
        async with asyncio.timeout(30):
            for done in (None, 10, 20, 40, 5):  # the last: its files have come, and it checks them
                if done is not None:
                    note.write_text(json.dumps(["progress", done, 40]))
                while not seen or seen[-1].done != done:
                    await asyncio.sleep(0.02)
        assert {each.phase for each in seen} == {"waiting"}
        assert [each.share for each in seen] == [None, 0.25, 0.5, 1.0, 0.125]
    assert isinstance(await waiting, Profile)
    assert not note.exists()


async def test_progress_is_told_in_bytes(tmp_path: Path, hub: Hub) -> None:
    hub.seconds_per_kib = 0.04
    seen: list[weights.Fetching] = []
    await fetch(config(tmp_path, hub), profile(), seen=seen)
    assert seen[0].total == sum(len(data) for name, data in hub.files.items() if name != "pytorch_model.bin")
    shares = [each.share for each in seen if each.share is not None]
    assert shares == sorted(shares)
    assert len(set(shares)) > 1


async def test_a_killed_fetch_goes_on_where_it_ended(tmp_path: Path, hub: Hub) -> None:
    hub.seconds_per_kib = 0.02
    request = {"repo": "org/tiny", "cache": str(tmp_path / "cache"), "endpoint": hub.url}
    child = subprocess.Popen(
        [sys.executable, str(weights.PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin
    assert child.stdout
    child.stdin.write(json.dumps(request))
    child.stdin.close()
    until = time.monotonic() + 20
    while hub.sent.get("model-00001-of-00002.safetensors", 0) < 10_000 and time.monotonic() < until:
        await asyncio.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    hub.seconds_per_kib = 0.0
    found = await fetch(config(tmp_path, hub), profile())
    assert isinstance(found, Profile)
    assert (Path(found.model) / "model-00001-of-00002.safetensors").read_bytes() == LARGE


async def test_a_download_that_stands_still_is_given_up_with_its_time(tmp_path: Path, hub: Hub) -> None:
    hub.seconds_per_kib = 30.0
    found = await fetch(config(tmp_path, hub), profile(), stall=2.0)
    assert found == weights.NotFetched(
        code="fetch_stalled",
        text="cannot fetch org/tiny: nothing came for 2 s",
        hint="look at this node's way to the hub",
    )


async def test_a_full_disk_is_seen_before_the_first_byte(tmp_path: Path, hub: Hub) -> None:
    hub.info = lambda: {**Hub.info(hub), "siblings": [{"rfilename": "x.safetensors", "size": 10**18}]}  # type: ignore[method-assign]
    found = await fetch(config(tmp_path, hub), profile())
    assert isinstance(found, weights.NotFetched)
    assert found.code == "disk_full"
    assert "1000000000.3 GB needed" in found.text
    assert hub.gets == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"model_revision": "no-such"}, "model_missing"),
        ({"model": "org/none"}, "model_missing"),
        ({"model_files": ["*.Q4.gguf"]}, "model_missing"),
    ],
)
async def test_what_the_hub_does_not_have_is_said(tmp_path: Path, hub: Hub, fields: dict[str, Any], code: str) -> None:
    found = await fetch(config(tmp_path, hub), profile(**fields))
    assert isinstance(found, weights.NotFetched)
    assert found.code == code


async def test_without_the_hub_the_copy_that_is_here_serves_and_nothing_else(tmp_path: Path, hub: Hub) -> None:
    found = await fetch(config(tmp_path, hub), profile())
    hub.url = "http://127.0.0.1:9"
    assert await fetch(config(tmp_path, hub), profile()) == found
    assert await fetch(config(tmp_path, hub), profile(model_revision=COMMIT)) == found
    other = await fetch(config(tmp_path, hub), profile(model="org/other"))
    assert isinstance(other, weights.NotFetched)
    assert other.code == "hub_unreachable"


async def test_the_token_is_the_profiles_or_the_nodes_and_shows_nowhere(tmp_path: Path, hub: Hub) -> None:
    hub.token, hub.gated = "hf_canary", True
    closed = await fetch(config(tmp_path, hub), profile())
    assert isinstance(closed, weights.NotFetched)
    assert closed.code == "model_gated"
    wanted = profile(env={"HF_TOKEN": {"secret": "mine"}})
    wrong = await fetch(config(tmp_path, hub), wanted, secrets={"mine": "hf_wrong"})
    assert isinstance(wrong, weights.NotFetched)
    assert "hf_wrong" not in wrong.text + wrong.hint
    assert isinstance(await fetch(config(tmp_path, hub), wanted, secrets={"mine": "hf_canary"}), Profile)
    other = tmp_path / "other"
    with_token = config(other, hub, token_secret="hub")
    assert isinstance(await fetch(with_token, profile(), secrets={"hub": "hf_canary"}), Profile)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hf_canary" in path.read_bytes()]


async def test_llama_cpp_gets_the_file_that_the_patterns_choose(tmp_path: Path, hub: Hub) -> None:
    hub.files = {"a-Q4_K_M.gguf": LARGE, "a-Q8_0.gguf": LARGE + b"x", "README.md": b"hello"}
    found = await fetch(config(tmp_path, hub), profile(engine="llamacpp", model_files=["*Q8*.gguf"]))
    assert isinstance(found, Profile)
    assert found.model.endswith(f"{COMMIT}/a-Q8_0.gguf")
    assert hub.gets == ["a-Q8_0.gguf"]


async def test_a_cancelled_fetch_leaves_no_process(tmp_path: Path, hub: Hub) -> None:
    hub.seconds_per_kib = 5.0
    task = asyncio.ensure_future(fetch(config(tmp_path, hub), profile()))
    until = time.monotonic() + 20
    while not hub.gets and time.monotonic() < until:
        await asyncio.sleep(0.02)
    assert _fetchers()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not _fetchers()


def _fetchers() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) != os.getpid():
                continue
            command = (path.parent / "cmdline").read_bytes()
        except (OSError, IndexError, ValueError):
            continue
        if b"fetch_model" in command:
            found.append(path.parent.name)
    return found


def test_the_nodes_owner_says_what_may_be_fetched(tmp_path: Path) -> None:
    assert Policy().against_hub("org/tiny") is None
    rooted = Policy(model_roots=(tmp_path,))
    assert rooted.against_hub("org/tiny") == "this node allows models under its model_roots only"
    some = Policy(model_roots=(tmp_path,), hub=HubPolicy(allow=("Qwen/*", "org/*"), cache=tmp_path / "hub"))
    assert some.against_hub("org/tiny") is None
    assert some.against_hub("evil/tiny") == "this node allows Qwen/*, org/* only"
    assert some.roots == (tmp_path, tmp_path / "hub")


def test_a_hub_beside_model_roots_needs_a_cache(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("policy: {model_roots: [/models], hub: {allow: ['Qwen/*']}}")
    with pytest.raises(ConfigError, match="needs a cache"):
        load(flags={}, environ={}, path=file)
    file.write_text("policy: {model_roots: [/models], hub: {cache: /models/hub, allow: Qwen}}")
    with pytest.raises(ConfigError, match="give a list"):
        load(flags={}, environ={}, path=file)


@pytest.mark.parametrize(
    ("model", "is_id"),
    [("Qwen/Qwen2.5-7B-Instruct", True), ("/models/a", False), ("./a/b", False), ("../b", False), ("a/b/c", False),
     ("~/a", False), ("gpt2", False), ("a/..", False)],
)  # fmt: skip
def test_an_id_is_told_from_a_path(model: str, is_id: bool) -> None:
    assert profile(model=model).from_hub is is_id


def test_a_revision_without_a_hub_id_is_refused() -> None:
    with pytest.raises(ProfileError, match="is no hub id"):
        profile(model="/models/a", model_revision="main")
    with pytest.raises(ProfileError, match="a branch, tag or commit is needed"):
        profile(model_revision="../../etc")
