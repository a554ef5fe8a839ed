"""Judges schedules in place on an accelerator: links the whole model with them and simulates it.

Fulfils the tuner's `ModelEvaluator` protocol without knowing the tuner. The model is compiled once,
with the best on record; an alternative exchanges the code of some kernels in it, whose weights keep
room but no values: enough to know how long the program takes, not to run it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from tilesmith.codegen.programs.structures import default_of
from tilesmith.compiler.backends.backend import Compiled, backend_of
from tilesmith.compiler.backends.recorded import Records
from tilesmith.compiler.driver.build import fastest_recipe
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.recipe.memory import ALIGNMENT
from tilesmith.compiler.recipe.program import CodeObject, KernelStep, Place, Recipe, Step
from tilesmith.compiler.settling.chooser import ScheduleChooser
from tilesmith.families.trainium.backend.model import latency_of, shown_times
from tilesmith.families.trainium.backend.program import QUICK, LinkedProgram, segments
from tilesmith.families.trainium.simulator.timelines.timeline import timeline
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.results.model_evaluator import Placed
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import CodegenError, VerificationError
from tilesmith.search_space.workloads.workload import Workload

Choices = Mapping[Workload, Config]


class DeviceEvaluator:
    """Latency of one model on an accelerator under changing schedules.

    Args:
        kernels: the model as `compiler.driver.build.scheduled` gives it.
    """

    near_tie = 1e-4
    share = 0.7
    rivals = 6
    luck = 1.5
    trials_each = 10
    varies = True

    def __init__(
        self, kernels: Graph, target: Target, database: Records | None, threads: int = 1
    ) -> None:
        self._kernels, self._target = kernels, target
        self._database, self._threads = database, threads
        self._compiled: dict[tuple[str, str], Compiled] = {}
        self._known: dict[frozenset[tuple[str, str]], MeasureResult] = {}
        workloads = (node.workload for node in kernels.nodes)
        self._workloads = tuple(dict.fromkeys(w for w in workloads if w is not None))

    @cached_property
    def _base(self) -> Recipe:
        """The model with every kernel's best on record."""
        chooser = ScheduleChooser(self._target, self._database, self._threads, measured_only=True)
        return fastest_recipe(self._kernels, chooser)

    def shown(self) -> Mapping[Workload, float]:
        """How much later each workload's kernels end than all before them, in the linked model."""
        times: dict[str, float] = {}
        for part in segments(self._base, QUICK):
            if isinstance(part, LinkedProgram):
                shown = shown_times(part, timeline(part.linked.stream))
                for step, time in zip(part.steps, shown.tolist(), strict=True):
                    times[step.workload] = times.get(step.workload, 0.0) + time * 1e-9
        return {workload: times.get(workload.key, 0.0) for workload in self._workloads}

    def untuned(self) -> Choices:
        """Nothing: `starts` has it, and nothing is noisy."""
        return {}

    def measure_untuned(self) -> Mapping[Workload, Placed]:
        """Nothing: the simulator tells as soon."""
        return {}

    def kernels(self, choices: Choices) -> Sequence[tuple[Workload, Config, float]]:
        """Nothing: kernels of a program overlap."""
        return ()

    def starts(self) -> Sequence[Choices]:
        """Every kernel's default: what a database without records comes to."""
        usual = {w: default_of(w, self._target) for w in self._workloads}
        return (usual,)

    def measure(self, alternatives: Sequence[Choices]) -> list[MeasureResult]:
        """The model under each alternative.

        Args:
            alternatives: schedules to use whatever the records say; other workloads keep theirs.
        """
        return [self._measured(choices) for choices in alternatives]

    def _measured(self, choices: Choices) -> MeasureResult:
        usual = {s.workload: s.config for s in self._base.steps if isinstance(s, KernelStep)}
        changed = frozenset(
            (workload.key, config.key)
            for workload, config in choices.items()
            if usual.get(workload.key, config.key) != config.key
        )
        if changed not in self._known:
            try:
                seconds = latency_of(self._with(dict(changed)), QUICK) * 1e-9
                self._known[changed] = MeasureResult("ok", "simulator", (seconds,))
            except (CodegenError, VerificationError) as error:
                self._known[changed] = MeasureResult.failed(error, "simulator")
        return self._known[changed]

    def _with(self, changed: Mapping[str, str]) -> Recipe:
        """The model with other configurations for some workloads, by their keys."""
        base = self._base
        steps: list[Step] = []
        codes: list[CodeObject] = list(base.codes)
        offset = base.constants.size
        for step in base.steps:
            if isinstance(step, KernelStep) and step.workload in changed:
                kernel_code = self._code(step.workload, changed[step.workload])
                places, offset = self._places(step, kernel_code, offset)
                config = changed[step.workload]
                codes.append(kernel_code.code)
                step = replace(step, config=config, code=len(codes) - 1, arguments=places)
            steps.append(step)
        return replace(base, steps=tuple(steps), codes=tuple(codes))

    def _code(self, workload: str, config: str) -> Compiled:
        key = (workload, config)
        if key not in self._compiled:
            parsed = Workload.parse(workload), Config.from_json(config)
            self._compiled[key] = backend_of(self._target).compile(
                parsed[0], self._target, parsed[1]
            )
        return self._compiled[key]

    def _places(
        self, step: KernelStep, compiled: Compiled, offset: int
    ) -> tuple[tuple[Place, ...], int]:
        """Places of a kernel's parameters: activations where they were, constants behind all
        others; and the end of these."""
        names = self._code(step.workload, step.config).parameters
        known = dict(zip(names, step.arguments, strict=True))
        places = []
        for name in compiled.parameters:
            place = known.get(name)
            if place is None or place.region == "constant":
                place = Place("constant", offset)
                offset += -(-compiled.nbytes[name] // ALIGNMENT) * ALIGNMENT
            places.append(place)
        return tuple(places), offset
