"""A changed profile under client load: refused by the node, failing while it loads, and good. No request fails."""

import time
from typing import Any

import pytest

from tests.e2e.harness import House, wait_for
from tests.e2e.test_outages import Traffic

pytestmark = [pytest.mark.heavy, pytest.mark.e2e, pytest.mark.timeout(240)]


def echo(*args: str, **fields: Any) -> dict[str, Any]:
    extra = ["--chunk-delay", "0.05", *args]
    profile = {"engine": "echo", "gpus": 0, "extra_args": extra, "drain_timeout_seconds": 20, "stop_grace_seconds": 3}
    return {"name": "one", "replicas": 2, "profile": {**profile, **fields}}


def replicas(house: House) -> list[dict[str, Any]]:
    return list(house.api("replicas/")["results"])


def ended(house: House, target: int) -> dict[str, Any] | None:
    """The rollout to that revision once it is over and two replicas alone are there, ready."""
    rollout = house.api("models/one/rollout/")
    rows = replicas(house)
    settled = len(rows) == 2 and {row["state"] for row in rows} == {"ready"}
    return rollout if rollout["target"] == target and rollout["state"] != "rolling" and settled else None


def test_no_request_fails_while_profiles_change(house: House) -> None:
    house.agent()
    house.api("models/", echo())
    wait_for(lambda: len(replicas(house)) == 2 and {r["state"] for r in replicas(house)} == {"ready"}, "two replicas")
    wait_for(lambda: house.chat("one", "x") == "x", "the route")
    before = {row["uid"] for row in replicas(house)}
    with Traffic(house) as traffic:
        house.api("models/one/", echo(model="/no/such/model"), method="PUT")
        refused = wait_for(lambda: ended(house, 2), "the refusal")
        assert (refused["state"], refused["checks"][0]["code"]) == ("failed", "model_missing")
        house.api("models/one/", echo("--no-such-flag"), method="PUT")
        refused = wait_for(lambda: ended(house, 3), "the next refusal")
        assert (refused["state"], refused["checks"][0]["code"]) == ("failed", "flag_unknown")
        assert "--no-such-flag" in refused["reason"]
        assert {row["uid"] for row in replicas(house)} == before  # nothing was touched

        house.api("models/one/", echo("--exit-code", "3"), method="PUT")
        failed = wait_for(lambda: ended(house, 4), "the rollback", 60)
        assert failed["state"] == "failed"
        assert "failed at revision 4" in failed["reason"]
        assert {row["uid"] for row in replicas(house)} == before

        house.api("models/one/", echo("--first-byte-delay", "0.01"), method="PUT")
        done = wait_for(lambda: ended(house, 5), "the good one", 90)
        assert done["state"] == "done"
        assert not {row["uid"] for row in replicas(house)} & before
        time.sleep(1)
    assert traffic.failures == []
    assert traffic.answers > 20
