"""The tables of the fleet."""

from fleet.models.catalog import CatalogModel, ProfileRevision, ServedName
from fleet.models.inventory import Adapter, Fabric, Gpu
from fleet.models.journal import Command, Event
from fleet.models.nodes import AgentSession, Lease, Listener, Node
from fleet.models.replicas import Flow, GpuClaim, Replica, Shard
from fleet.models.rollouts import DryCheck, Rollout

__all__ = [
    "Adapter",
    "AgentSession",
    "CatalogModel",
    "Command",
    "DryCheck",
    "Event",
    "Fabric",
    "Flow",
    "Gpu",
    "GpuClaim",
    "Lease",
    "Listener",
    "Node",
    "ProfileRevision",
    "Replica",
    "Rollout",
    "ServedName",
    "Shard",
]
