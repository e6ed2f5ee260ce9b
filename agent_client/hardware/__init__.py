"""What the machine has, in the shape of DESIGN.md section 5. A figure that is not known is null, never 0."""

from agent_client.hardware.discovery import Discovery, DiscoveryOptions, discover
from agent_client.hardware.inventory import Inventory
from agent_client.hardware.watch import Watch

__all__ = ["Discovery", "DiscoveryOptions", "Inventory", "Watch", "discover"]
