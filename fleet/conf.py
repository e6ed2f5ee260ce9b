"""The fleet's settings, typed. Alone reads `settings.FLEET_*`."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConf:
    heartbeat: timedelta
    unreachable_after: timedelta
    lost_after: timedelta
    start_grace: timedelta
    brake_share: float  # of the fleet, silent within one window
    brake_nodes: int
    loss_spacing: timedelta
    flap_damping: timedelta  # after a node's second return; none: nodes are not damped
    report_every: timedelta
    hung_after: timedelta
    rendezvous_ports: range  # on the head's node, where the ranks of a multi-node replica meet
    join_secret: str


def fleet_conf() -> FleetConf:
    given: dict[str, Any] = settings.FLEET
    return FleetConf(
        heartbeat=timedelta(seconds=given["heartbeat_seconds"]),
        unreachable_after=timedelta(seconds=given["unreachable_after_seconds"]),
        lost_after=timedelta(seconds=given["lost_after_seconds"]),
        start_grace=timedelta(seconds=given["start_grace_seconds"]),
        brake_share=given["brake_share"],
        brake_nodes=given["brake_nodes"],
        loss_spacing=timedelta(seconds=given["loss_spacing_seconds"]),
        flap_damping=timedelta(seconds=given["flap_damping_seconds"]),
        report_every=timedelta(seconds=given["report_seconds"]),
        hung_after=timedelta(seconds=given["hung_after_seconds"]),
        rendezvous_ports=given["rendezvous_ports"],
        join_secret=given["join_secret"],
    )
