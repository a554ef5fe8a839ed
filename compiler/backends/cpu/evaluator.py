"""Judges schedules in place: builds the whole model with them and times it on this machine.

Fulfils the tuner's `ModelEvaluator` protocol without knowing the tuner: candidates that look equal
alone are told apart inside the model, layout conversions and neighbours' caches included.
"""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.programs.structures import default_of
from tilesmith.compiler.assembly.assembly import assemble
from tilesmith.compiler.backends.recorded import Records
from tilesmith.compiler.driver.build import compile_kernels
from tilesmith.compiler.graph.graph import Graph, TensorInfo
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.compiler.runtime.profiling import kernel_times
from tilesmith.compiler.runtime.turns import in_turns, rounds_of
from tilesmith.compiler.settling.chooser import ScheduleChooser
from tilesmith.compiler.settling.settlement import Settled, settle
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.results.model_evaluator import Placed
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.workloads.workload import Workload

_KEPT = 2
"""Executables kept built: the incumbent and its rival."""
_LOOKS = 5
"""Runs of the untuned model that kernels are looked at in."""

Settlement = tuple[tuple[object, ...], ...]


class GraphEvaluator:
    """Latency of one model under changing schedules.

    Args:
        kernels: the model as `compiler.driver.build.prepared` gives it.
        runs: timed runs of each alternative at least, in turns.
    """

    near_tie = 0.01
    share = 0.1
    rivals = 2
    luck = 1.1
    trials_each = 0
    varies = False

    def __init__(
        self,
        kernels: Graph,
        target: Target,
        database: Records | None,
        threads: int = 1,
        runs: int = 5,
    ) -> None:
        self._graph = kernels
        self._target = target
        self._database = database
        self._threads = threads
        self._runs = runs
        rng = np.random.default_rng(0)
        self._inputs = {info.name: _input(info, rng) for info in kernels.inputs}
        self._known: dict[frozenset[tuple[Workload, Config]], Settled] = {}
        self._built: dict[Settlement, Executable] = {}

    def untuned(self) -> Mapping[Workload, Config]:
        """Every kernel's default."""
        nodes = (
            node for inner, _ in [(self._graph, 1), *self._graph.inside()] for node in inner.nodes
        )
        workloads = dict.fromkeys(node.workload for node in nodes if node.workload is not None)
        return {workload: default_of(workload, self._target) for workload in workloads}

    def measure_untuned(self) -> Mapping[Workload, Placed]:
        """Each workload's mean latency in the untuned model, in the layouts that take most."""
        taken: dict[tuple[Workload, Config], list[tuple[float, ...]]] = {}
        for workload, config, seconds in self._times(self.untuned()):
            taken.setdefault((workload, config), []).append(seconds)
        predictions: dict[Workload, Placed] = {}
        for (workload, config), every in sorted(taken.items(), key=lambda i: sum(map(sum, i[1]))):
            mean = tuple(sum(run) / len(every) for run in zip(*every, strict=True))
            predictions[workload] = config, MeasureResult("ok", "hardware", mean)
        return predictions

    def kernels(
        self, choices: Mapping[Workload, Config]
    ) -> Sequence[tuple[Workload, Config, float]]:
        """Every kernel with its median seconds of a few runs, timed inside them."""
        return [(w, c, statistics.median(seconds)) for w, c, seconds in self._times(choices)]

    def _times(
        self, choices: Mapping[Workload, Config]
    ) -> list[tuple[Workload, Config, tuple[float, ...]]]:
        """Of each kernel, the seconds in each of `_LOOKS` runs; empty for models with nodes that
        are no kernels, or that cannot be run."""
        try:
            settled = self._settled(choices)
            times = kernel_times(self._executable(_key(settled), settled), self._inputs, _LOOKS)
        except TilesmithError:  # told where the model is compiled for good
            return []
        return [(Workload.parse(s.workload), Config.from_json(s.config), t) for s, t in times]

    def shown(self) -> Mapping[Workload, float]:
        """Nothing: kernels run one after another. What was settled before is settled anew."""
        self._known.clear()
        return {}

    def starts(self) -> Sequence[Mapping[Workload, Config]]:
        """None: a kernel costs in a model about what it costs alone, but for layouts."""
        return ()

    def measure(self, alternatives: Sequence[Mapping[Workload, Config]]) -> list[MeasureResult]:
        """The model under each alternative, measured in turns.

        Args:
            alternatives: schedules to use whatever the records say; other workloads keep the best
                on record. Alternatives that come to the same program have the same samples.
        """
        settled = [self._settled(choices) for choices in alternatives]
        wanted = {_key(graph): graph for graph in settled}
        models = {key: self._executable(key, graph) for key, graph in wanted.items()}
        runs = [partial(model.run, self._inputs) for model in models.values()]
        rounds = rounds_of(runs, self._runs) if len(runs) > 1 else 1
        samples = dict(zip(models, in_turns(runs, rounds), strict=True))
        return [MeasureResult("ok", "hardware", samples[_key(graph)]) for graph in settled]

    def _settled(self, choices: Mapping[Workload, Config]) -> Settled:
        """What choices come to; remembered until records are looked at anew (`shown`)."""
        key = frozenset(choices.items())
        if key not in self._known:
            self._known[key] = self._settle(choices)
        return self._known[key]

    def _settle(self, choices: Mapping[Workload, Config]) -> Settled:
        return settle(
            self._graph, ScheduleChooser(self._target, self._database, self._threads, choices)
        )

    def _executable(self, key: Settlement, settled: Settled) -> Executable:
        if key not in self._built:
            kernels = compile_kernels(settled, self._target)
            model = Executable(assemble(settled, kernels, self._target, self._threads))
            while len(self._built) >= _KEPT:
                del self._built[next(iter(self._built))]
            self._built[key] = model
        self._built[key] = self._built.pop(key)  # the last used is the last to go
        return self._built[key]


def _key(settled: Settled) -> Settlement:
    """What two settlements of one graph have in common if they come to the same program."""
    return tuple(
        (
            node.outputs,
            option.operands,
            option.output,
            option.workload,
            option.config,
            option.threads,
        )
        for node, option in settled.options.items()
    )


def _input(info: TensorInfo, rng: np.random.Generator) -> NDArray[Any]:
    """Normal numbers; zeros and ones where numbers may be indices."""
    dtype = to_numpy(info.dtype)
    if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
        return rng.integers(0, 2, info.dims).astype(dtype)
    return rng.standard_normal(info.dims).astype(dtype)
