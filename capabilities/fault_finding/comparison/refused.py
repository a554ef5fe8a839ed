"""Kernels that were to run on the target and do not, as no code came of them: whose fault is it?

A target that falls back runs them on the host, where they are right; so a program that breaks a law
of its machine would go unseen. Whoever looks for faults watches the passes and is told.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilesmith.codegen.programs.structures import default_of
from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.passes.fallback import FallBack
from tilesmith.compiler.rewriting.graph_pass import Pass, observed
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import TilesmithError, VerificationError
from tilesmith.search_space.workloads.workload import Workload


@dataclass
class Refusals:
    """An observer of passes.

    Attributes:
        workloads: that no code came of, with the target.
    """

    workloads: dict[Workload, Target] = field(default_factory=dict)

    def __call__(self, step: Pass, before: Graph, after: Graph) -> None:
        if isinstance(step, FallBack) and step.refused:
            self.workloads |= dict.fromkeys(step.refused, step.target)

    def sentences(self) -> tuple[str, ...]:
        """One for each, with the reason."""
        return tuple(
            f"kernel '{workload}' runs on the host instead: {reason_of(workload, target)}"
            for workload, target in self.workloads.items()
        )


@contextmanager
def refusals() -> Iterator[Refusals]:
    """Watches what is compiled meanwhile."""
    seen = Refusals()
    with observed(seen):
        yield seen


def reason_of(workload: Workload, target: Target) -> str:
    """Why no code comes of a workload."""
    try:
        backend_of(target).compile(workload, target, default_of(workload, target))
    except VerificationError as error:
        return f"its program for {target.name} breaks a law: {_short(error)}"
    except TilesmithError as error:
        return f"no code comes of it for {target.name}: {_short(error)}"
    return f"no code came of the schedule that was chosen for {target.name}"


def _short(error: TilesmithError) -> str:
    return " ".join(str(error).split())[:300]
