"""IP addresses of network devices, as the kernel tells them: no program is started and nobody's output is parsed."""

import errno
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Any

#: Linux, <linux/sockios.h>: the IPv4 address of an interface.
_SIOCGIFADDR = 0x8915
_LONGEST_NAME = 15  # IFNAMSIZ without the final zero
_GLOBAL_SCOPE = "00"
IF_INET6 = Path("/proc/net/if_inet6")


def fill(adapters: list[dict[str, Any]]) -> None:
    """Each port gets the address of its network device."""
    for adapter in adapters:
        for port in adapter["ports"]:
            port["address"] = of_netdev(port["netdev"]) if port["netdev"] else None


def of_netdev(name: str) -> str | None:
    """The IPv4 address, else a global IPv6 one; empty when the device has neither, None when that can't be known."""
    if len(name.encode()) > _LONGEST_NAME:
        return None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            answer = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()))
    except OSError as error:
        # No such address is an answer; no such device (another network namespace has it) is none.
        return _ipv6(name) if error.errno == errno.EADDRNOTAVAIL else None
    return socket.inet_ntoa(answer[20:24])


def _ipv6(name: str) -> str:
    """Lines of address, index, prefix length, scope, flags and device: the first of global scope."""
    try:
        lines = IF_INET6.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        address, _, _, scope, _, device = (line.split() + [""] * 6)[:6]
        if device == name and scope == _GLOBAL_SCOPE and len(address) == 32:
            try:
                return str(ipaddress.IPv6Address(bytes.fromhex(address)))
            except ValueError:
                continue
    return ""
