"""What a program costs, and what it computes, on hardware that is described as data."""

from tilesmith.search_space.results.judgement import Judgement
from tilesmith.simulator.dispatch import (
    FIDELITIES,
    FamilySimulator,
    Fidelity,
    OperatorCost,
    SimulationResult,
    check_target,
    judge,
    judges_as_measured,
    measure,
    needs_schedule,
    simulate,
    simulators,
)

__all__ = [
    "FIDELITIES",
    "FamilySimulator",
    "Fidelity",
    "Judgement",
    "OperatorCost",
    "SimulationResult",
    "check_target",
    "judge",
    "judges_as_measured",
    "measure",
    "needs_schedule",
    "simulate",
    "simulators",
]
