"""What cores tell each other: the steps of collectives, and what they cost on a mesh."""

from tilesmith.simulator.collectives.cost import CollectiveCost, collective_cost

__all__ = ["CollectiveCost", "collective_cost"]
