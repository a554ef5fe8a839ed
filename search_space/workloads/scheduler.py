"""`Scheduler`: how one family of targets runs an operator; a `Template` says what it computes.

A scheduler offers a search space for a workload on a target, a configuration to use untuned, and
turns a configuration into a schedule. It registers for operators and a family from a file of its
own in `schedules/<family>/`; nothing else needs an edit. Whether a family runs an operator at all
is a lookup (`find_scheduler`), whether it runs this workload an answer (`Scheduler.refusal`):
neither is ever concluded from an error, so that a fact misspelt in a scheduler stays an error.

Contract:
- `schedule` may look at structural knobs only; tile knobs reach it as symbols (`expression.var` of
  the knob's name), so that one lowering serves every tile size.
- `default` and `alternatives` are legal in `space`, need no tuning and are sensible, no straw men.
- A scheduler has no state: equal arguments, equal answers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions.expression import as_expr
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.support.errors import TargetError, WorkloadError
from tilesmith.search_space.support.registry import Registry
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class Panels:
    """A matrix in panels: blocks of `axis`, each with the other axis outside and the block inside:
    `panel[i / block][j][i % block]`, filled up with zeros, in its own element type.

    Attributes:
        buffer: the prepared buffer that holds them.
        group: neighbours along the other axis that lie side by side, as instructions take them that
            multiply several at once: `panel[i / block][j / group][i % block][j % group]`.
        fill: what the other axis is filled up to a multiple of.
    """

    axis: int
    block: int
    buffer: str
    group: int = 1
    fill: int = 1

    def pack(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The panels of a matrix whose `axis` comes first."""
        rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % self.fill)))
        if self.group == 1:
            return Layout.blocked(2, 0, self.block, (0, 1)).pack(rows)
        factors = (as_expr(self.block), as_expr(self.group))
        parts = [LayoutDimension(axis, "outer", factor) for axis, factor in enumerate(factors)]
        parts += [LayoutDimension(axis, "inner", factor) for axis, factor in enumerate(factors)]
        return Layout(tuple(parts)).pack(rows)


class Scheduler(ABC):
    """Schedules of some operators on the targets of one family.

    See the module's docstring for the contract. Only `refusal` is asked of workloads that are
    refused.
    """

    def refusal(self, workload: Workload, target: Target) -> str | None:
        """Why there is no schedule for these parameters or dtypes, one sentence; None if there is.

        That even the smallest tiles are too large for a target is no refusal: the space is empty.
        """
        return None

    @abstractmethod
    def space(self, workload: Workload, target: Target) -> SearchSpace:
        """Every legal configuration on this target."""

    @abstractmethod
    def default(self, workload: Workload, target: Target) -> Config:
        """The configuration used without tuning.

        Raises:
            ConfigError: the space is empty; the message names the limit that is broken.
        """

    def alternatives(self, workload: Workload, target: Target) -> tuple[Config, ...]:
        """Configurations of other algorithms; one of them is used without tuning where the target's
        simulator estimates that it clearly beats `default` (`codegen.programs.structures`)."""
        return ()

    def canonical(self, workload: Workload, target: Target) -> Config:
        """The configuration in whose order of summation all of a workload with `sums=same` add.

        Its order rests on the operator and the instruction set: on no size that outputs are cut
        along (a batch), and nothing that machines of one instruction set differ in.
        """
        return self.default(workload, target.uncalibrated)

    def inside(self, workload: Workload, target: Target) -> Config:
        """The configuration used without tuning between kernels that keep tensors on chip."""
        return self.default(workload, target)

    @abstractmethod
    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        """The schedule of a structural configuration, tile sizes symbolic; extents may be, too."""

    def panels(self, workload: Workload, target: Target, config: Config) -> Mapping[str, Panels]:
        """How a configuration keeps constant operands, where it keeps them in panels.

        Others that read the same constant can do with that copy of it (`compiler.settling.tables`).
        """
        return {}

    def varying(
        self, workload: Workload, usual: Workload, largest: Workload, target: Target, config: Config
    ) -> Config:
        """The configuration to use for all sizes, given one of usual sizes.

        Args:
            workload: symbolic.
            usual, largest: the same at usual sizes, and at the largest.
        """
        return config


class _Prepared(Protocol):
    """The answers of a scheduler for one workload on one target; see `Scheduler`."""

    def space(self) -> SearchSpace: ...

    def default(self) -> Config: ...

    def schedule(self, structure: Config) -> Schedule: ...


class PreparingScheduler(Scheduler):
    """A scheduler whose three answers begin with the same work."""

    @abstractmethod
    def prepare(self, workload: Workload, target: Target) -> _Prepared:
        """What answers for one workload on one target."""

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return self.prepare(workload, target).space()

    def default(self, workload: Workload, target: Target) -> Config:
        return self.prepare(workload, target).default()

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        return self.prepare(workload, target).schedule(structure)


schedulers: Registry[Scheduler] = Registry(
    "scheduler", "tilesmith.search_space.schedules", TargetError, room="schedules", nested=True
)
"""By name, "operator on family"."""

S = TypeVar("S", bound=type[Scheduler])


def schedules(*operators: str, on: str) -> Callable[[S], S]:
    """Decorator: the class schedules `operators` on targets of family `on`."""

    def add(kind: S) -> S:
        scheduler = kind()
        for operator in operators:
            schedulers.register(f"{operator} on {on}")(scheduler)
        return kind

    return add


def find_scheduler(operator: str, family: str) -> Scheduler | None:
    """The scheduler of an operator for a family of targets, if there is one."""
    return schedulers.find(f"{operator} on {family}")


def is_scheduled(workload: Workload, target: Target) -> bool:
    """Whether a target has schedules for a workload, be its tiles too large or not."""
    scheduler = find_scheduler(workload.operator, target.family)
    return scheduler is not None and scheduler.refusal(workload, target) is None


def scheduler_of(workload: Workload, target: Target) -> Scheduler:
    """The scheduler of a workload.

    Raises:
        TargetError: the target's family has none for the operator.
        WorkloadError: it has one, which refuses these parameters or dtypes.
    """
    scheduler = find_scheduler(workload.operator, target.family)
    if scheduler is None:
        raise TargetError(_absence(workload.operator, target))
    reason = scheduler.refusal(workload, target)
    if reason is not None:
        raise WorkloadError(reason)
    return scheduler


def _absence(operator: str, target: Target) -> str:
    """A sentence that says where there are schedules instead."""
    pairs = (name.split(" on ") for name in schedulers)
    families = [family for known, family in pairs if known == operator]
    where = f"; it is for {', '.join(families)}" if families else ""
    parts = template_of(operator).parts
    return (
        f"operator '{operator}' has no schedule for target '{target.name}' of family "
        f"'{target.family}'{where}{f', elsewhere use {parts}' if parts else ''}"
    )
