"""`Plan`: what a schedule's primitives say, sorted by stage, and the nests made from it.

It exists so that the steps of lowering need not read the primitives again: nests are added to it,
emission reads it. Invariant: every stage and tensor it names exists.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilesmith.search_space.scheduling.compute import ComputeDefinition
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.nest import Nest
from tilesmith.search_space.scheduling.rewriting import rewrite_stages
from tilesmith.search_space.scheduling.schedule import (
    AssignEngine,
    CacheRead,
    CacheWrite,
    CompileTime,
    ComputeAt,
    Inline,
    Primitive,
    ReverseComputeAt,
    Rotate,
    Schedule,
    SetLayout,
    SetScope,
    StagePrimitive,
)
from tilesmith.search_space.support.errors import ScheduleError


@dataclass
class Plan:
    """What the primitives say, sorted by stage, and the nests made from it.

    Attributes:
        compute_at: producer -> where it is attached.
        reverse_at: epilogue stage -> where it is attached.
        cache_write: stage -> its accumulator tile.
        scopes: memory scope of a stage's tensor (where a primitive names one).
        homes: memory scope of a tensor outside the loops (parameters, root stages).
    """

    compute: ComputeDefinition
    nests: dict[str, Nest] = field(default_factory=dict)
    compute_at: dict[str, ComputeAt] = field(default_factory=dict)
    reverse_at: dict[str, ReverseComputeAt] = field(default_factory=dict)
    cache_write: dict[str, CacheWrite] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    scopes: dict[str, str] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    compile_time: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, schedule: Schedule) -> Plan:
        plan = cls(rewrite_stages(schedule.compute, schedule.primitives))
        for primitive in schedule.primitives:
            match primitive:
                case ComputeAt(stage, _, _, scope):
                    plan.compute_at[stage] = primitive
                    plan.scopes[stage] = scope
                case ReverseComputeAt(stage, _, _, scope):
                    plan.reverse_at[stage] = primitive
                    plan.scopes[stage] = scope
                case CacheWrite(stage):
                    plan.cache_write[stage] = primitive
                case CacheRead(_, _, name, scope, _):
                    plan.scopes.setdefault(name, scope)
                case SetLayout(tensor, layout):
                    plan.layouts[tensor] = layout
                case SetScope(tensor, scope):
                    plan.homes[tensor] = scope
                case Rotate(stage, places):
                    plan.places[stage] = places
                case AssignEngine(stage, engine):
                    plan.engines[stage] = engine
                case CompileTime(stage):
                    plan.compile_time.add(stage)
                case _:
                    pass
        for primitive in schedule.primitives:
            plan.check_stage(primitive)
        plan.check()
        return plan

    def check_stage(self, primitive: Primitive) -> None:
        """Raise `ScheduleError` for a stage that does not exist (an inlined one is gone)."""
        order = [stage.name for stage in self.compute.stages]
        if not isinstance(primitive, StagePrimitive) or isinstance(primitive, Inline):
            return
        named = [primitive.stage]
        if isinstance(primitive, ComputeAt):
            named.append(primitive.consumer)
        elif isinstance(primitive, ReverseComputeAt):
            named.append(primitive.producer)
        for name in named:
            if name not in order:
                known = ", ".join(order)
                raise ScheduleError(f"'{self.compute.name}' has no stage '{name}'; it has {known}")

    def check(self) -> None:
        """Raise `ScheduleError` for a tensor that does not exist, or cannot be made beforehand."""
        tensors = {stage.name for stage in self.compute.stages}
        tensors |= {tensor.name for tensor in self.compute.inputs}
        for name in (*self.layouts, *self.homes):
            if name not in tensors:
                raise ScheduleError(f"'{self.compute.name}' has no tensor '{name}' to place")
        for name in self.compile_time:
            if not self.compute.is_constant(name):
                raise ScheduleError(f"stage '{name}' depends on inputs that are not constant")

    def host(self, name: str) -> tuple[str, str] | None:
        """(stage, loop) that a stage is attached to, or None at the root."""
        if name in self.compute_at:
            return self.compute_at[name].consumer, self.compute_at[name].loop
        if name in self.reverse_at:
            return self.reverse_at[name].producer, self.reverse_at[name].loop
        return None

    def enclosing(self, name: str) -> list[str]:
        """Variables of the loops around a stage: those fixed where it is computed."""
        host = self.host(name)
        if host is None:
            return []
        stage, loop = host
        if stage not in self.nests:
            raise ScheduleError(f"stage '{name}' is attached to '{stage}', which does not read it")
        nest = self.nests[stage]
        own = [item.variable for item in nest.loops[: nest.position(loop) + 1]]
        return [*self.enclosing(stage), *own]
