"""What a sweep over a target's numbers found: the baseline, every point, differences, the front.

Invariants: frozen; a point without a result has a reason, and NaN for a latency.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from tilesmith.capabilities.exploration.request import Budget
from tilesmith.simulator import SimulationResult
from tilesmith.simulator.designs.hardware_cost import HardwareCost

Schedules = Literal["best", "chosen", "kept", "searched"]
"""Where schedules come from; see `sweeping`."""


@dataclass(frozen=True)
class MachinePoint:
    """One machine.

    Attributes:
        settings: numbers changed, all of them; of the baseline its own.
        result: what the subject costs there; None where it does not run.
        cost: area and power; None where nobody models it.
        reason: why there is no result.
        on_front: no other point is both cheaper and faster.
    """

    settings: tuple[tuple[str, str], ...]
    result: SimulationResult | None
    cost: HardwareCost | None
    reason: str = ""
    on_front: bool = False

    @property
    def latency_us(self) -> float:
        """NaN where there is none."""
        return math.nan if self.result is None else self.result.latency_us

    def spent(self, budget: Budget) -> float:
        """mm2 or W; NaN where nobody knows."""
        if self.cost is None:
            return math.nan
        return self.cost.area_mm2 if budget == "area" else self.cost.power_w


@dataclass(frozen=True)
class MachineSweep:
    """The baseline and all points.

    Attributes:
        names: of the settings, in order.
        schedules: where schedules come from (see the module's docstring).
        budget: what latency is weighed against in the front.
    """

    target: str
    names: tuple[str, ...]
    baseline: MachinePoint
    points: tuple[MachinePoint, ...]
    schedules: Schedules
    budget: Budget
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        names = ", ".join(self.names)
        return f"<Sweep of {names} on {self.target}: {len(self.points)} points beside the target's>"

    @property
    def rows(self) -> tuple[MachinePoint, ...]:
        """The baseline, then the others."""
        return (self.baseline, *self.points)

    @property
    def piece(self) -> str:
        """What area and power are of."""
        return self.baseline.cost.piece if self.baseline.cost is not None else ""

    def row(self, point: MachinePoint) -> dict[str, Any]:
        """A line of the table."""
        base = self.baseline
        costs = {} if point.cost is None or base.cost is None else {
            "area_mm2": point.cost.area_mm2,
            "area_change": point.cost.area_mm2 / base.cost.area_mm2 - 1,
            "power_w": point.cost.power_w,
            "power_change": point.cost.power_w / base.cost.power_w - 1,
        }  # fmt: skip
        return {
            **dict(point.settings),
            "latency_us": point.latency_us,
            "latency_change": point.latency_us / base.latency_us - 1,
            "cycles": None if point.result is None else point.result.cycles,
            "bound": "" if point.result is None else point.result.bound,
            **costs,
            "front": point.on_front,
            "reason": point.reason,
        }

    def to_json(self) -> dict[str, Any]:
        """The object `tilesmith simulate --set KEY=A,B --json` prints."""
        return {
            "target": self.target,
            "schedules": self.schedules,
            "budget": self.budget,
            "baseline": self._point(self.baseline),
            "points": [self._point(point) for point in self.points],
            "notes": list(self.notes),
        }

    def _point(self, point: MachinePoint) -> dict[str, Any]:
        row = {name: value for name, value in self.row(point).items() if name not in self.names}
        more = {} if point.result is None else {
            "fidelity": point.result.fidelity,
            "engines": dict(point.result.engines),
        }  # fmt: skip
        return {"settings": dict(point.settings), **row, **more}
