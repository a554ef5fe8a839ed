"""What cores tell each other: the steps of collectives, and what they cost on a mesh."""

from tilesmith.simulator.collectives.cost import CollectiveCost, collective_cost
from tilesmith.simulator.collectives.timeline import CollectiveCall, collective_timeline

__all__ = ["CollectiveCall", "CollectiveCost", "collective_cost", "collective_timeline"]
