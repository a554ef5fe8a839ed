"""Where replicas stand and what they cost: cores of chips of instances.

Invariants: a replica lies within one instance; replicas smaller than a chip share chips; one pays
for whole instances.
"""

from dataclasses import dataclass

from tilesmith.capabilities.planning.sweeps.prices import Price
from tilesmith.search_space.support.errors import InputError


@dataclass(frozen=True)
class InstanceFleet:
    """Instances of one kind, filled with replicas.

    Attributes:
        instance: its name.
        chips_each: chips of an instance.
        cores_per_chip: cores of a chip.
        cores: cores of a replica.
        price: of an instance; None where nobody names one.
    """

    instance: str
    chips_each: int
    cores_per_chip: int
    cores: int
    price: Price | None = None

    def __post_init__(self) -> None:
        if self.cores > self.chips_each * self.cores_per_chip:
            raise InputError(
                f"a replica of {self.cores} cores is larger than {self.instance}, which has "
                f"{self.chips_each * self.cores_per_chip}; use fewer cores or a larger mesh"
            )

    @property
    def replicas_each(self) -> int:
        """Replicas that an instance holds."""
        return self.chips_each * self.cores_per_chip // self.cores

    def chips(self, replicas: int) -> int:
        """Chips that so many replicas stand on."""
        full, rest = divmod(replicas, self.replicas_each)
        return full * self._chips(self.replicas_each) + self._chips(rest)

    def instances(self, replicas: int) -> int:
        """Instances that hold so many replicas."""
        return -(-replicas // self.replicas_each)

    def usd_per_hour(self, replicas: int) -> float | None:
        """Dollars an hour for whole instances."""
        if self.price is None:
            return None
        return self.instances(replicas) * self.price.usd_per_hour

    def usd_per_chip_hour(self) -> float | None:
        """Dollars an hour for one chip, as its share of an instance that is used whole."""
        return None if self.price is None else self.price.usd_per_hour / self.chips_each

    def _chips(self, replicas: int) -> int:
        return -(-replicas * self.cores // self.cores_per_chip)
