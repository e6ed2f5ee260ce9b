"""Addresses of network devices: told where there is one, empty where there is none, unknown where nobody can tell."""

import errno
import socket
from pathlib import Path
from typing import Any

import pytest

from agent_client.hardware import addresses


def without_ipv4(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*args: Any) -> bytes:
        raise OSError(number, "no")

    monkeypatch.setattr(addresses.fcntl, "ioctl", refuse)


def test_the_loopback_device_has_its_address() -> None:
    assert addresses.of_netdev("lo") == "127.0.0.1"


@pytest.mark.parametrize("name", ["no-such-dev", "a-name-longer-than-any", "é" * 8])
def test_a_device_that_is_not_here_has_an_unknown_address(name: str) -> None:
    assert addresses.of_netdev(name) is None


def test_without_ipv4_a_global_ipv6_address_is_told_and_a_link_local_one_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ipv4(monkeypatch, errno.EADDRNOTAVAIL)
    table = tmp_path / "if_inet6"
    monkeypatch.setattr(addresses, "IF_INET6", table)
    assert addresses.of_netdev("ib0") == ""  # the kernel has no IPv6
    table.write_text(
        "fe80000000000000026bfffffe000001 02 40 20 80      ib0\n"
        "fd000000000000000000000000000007 03 40 00 80      ib1\n"
        "junk\nzz000000000000000000000000000007 02 40 00 80 ib0\n"
    )
    assert addresses.of_netdev("ib0") == ""
    assert addresses.of_netdev("ib1") == "fd00::7"


def test_what_can_not_be_asked_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    without_ipv4(monkeypatch, errno.EPERM)
    assert addresses.of_netdev("lo") is None


def test_each_port_gets_the_address_of_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses.fcntl, "ioctl", lambda *args: bytes(20) + socket.inet_aton("10.8.0.7") + bytes(232))
    ports: list[dict[str, Any]] = [{"netdev": "ib0"}, {"netdev": None}]
    addresses.fill([{"ports": ports}])
    assert [port["address"] for port in ports] == ["10.8.0.7", None]
