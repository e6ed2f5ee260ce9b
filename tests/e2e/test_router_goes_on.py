"""The router without the rest: database, broker and control plane are down, and clients notice nothing."""

import os
import time
import urllib.error

import pytest

from tests.e2e.harness import House, wait_for
from tests.support.postgres import PrivatePostgres, bin_folder

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.e2e,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bin_folder() is None and not os.environ.get("CI"), reason="PostgreSQL is not installed"),
]

ECHO = {"name": "one", "profile": {"engine": "echo", "gpus": 0}}
WORDS = "a b c d e"


@pytest.fixture
def house(house_on_postgres: House) -> House:
    return house_on_postgres


def status(house: House, key: str, model: str = "one") -> int:
    owner, house.key = house.key, key
    try:
        house.chat(model, WORDS)
        return 200
    except urllib.error.HTTPError as error:
        return error.code
    finally:
        house.key = owner


def sums(house: House) -> tuple[int, int, int]:
    """Usage rows, their different ids, and their tokens."""
    code = "from routing.models import Usage as U; from django.db.models import Sum, Count; print(*U.objects.aggregate("
    code += "a=Count('id'), b=Count('uid', distinct=True), c=Sum('completion_tokens')).values())"
    rows, different, tokens = house.manage("shell", "-v0", "-c", code).splitlines()[-1].split()
    return int(rows), int(different), int(tokens)


def test_routing_keys_limits_and_usage_go_on_without_the_rest(house: House, database: PrivatePostgres) -> None:
    house.agent()
    house.api("models/", ECHO)
    limited = house.api("keys/", {"name": "limited", "requests_per_minute": 5})
    revoked = house.api("keys/", {"name": "revoked"})
    wait_for(lambda: status(house, revoked["key"]) == 200, "the route and the keys")
    began = time.monotonic()
    house.api(f"keys/{revoked['id']}/revoke/", {})
    wait_for(lambda: status(house, revoked["key"]) == 401, "the revoked key to stop")
    assert time.monotonic() - began < 2.0
    served = 1 + int((time.monotonic() - began) > 0)
    wait_for(lambda: sums(house)[0] >= served, "usage before")

    house.kill("web", "worker", "beat", "bus")
    database.stop()
    before = 0
    deadline = time.monotonic() + 6
    while time.monotonic() < deadline:
        assert status(house, house.key) == 200
        before += 1
    while time.time() % 60 > 55:
        time.sleep(0.2)
    statuses = [status(house, limited["key"]) for _ in range(8)]
    assert statuses == [200] * 5 + [429] * 3
    wait_for(lambda: status(house, revoked["key"]) == 503, "its word that it can't tell which other keys there are")
    assert status(house, house.key, "nobody") == 404
    house.kill("router")  # and even a router that starts now knows routes and keys from its disk
    house.router()
    wait_for(lambda: house.get_text(house.router_port, "/readyz"), "the router anew")
    assert status(house, house.key) == 200
    assert status(house, limited["key"]) == 429
    assert status(house, revoked["key"]) == 503

    database.start()
    wait_for(lambda: status(house, revoked["key"]) == 401, "its word that the key is none")
    wanted = before + 5 + 1
    found = wait_for(lambda: (s := sums(house))[0] >= wanted and s, "all usage", 30)
    rows, different, tokens = found
    assert rows == different
    assert tokens == rows * len(WORDS.split())
