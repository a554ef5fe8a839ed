"""What layers and conversions take, measured inside compiled models.

A model with all layers in one precision is compiled, and its kernels are timed inside its runs;
each kernel's time is counted to a layer (`neighbours`). Conversions between precisions are timed
in a model that has nothing else. Every kernel's time is a trial in the tuning database: what is
there is not measured again, and what was measured stays when the user stops the job.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tilesmith.capabilities.quantisation.precisions.mixed import BF16, FP32, INT4, INT8, MixedModel
from tilesmith.capabilities.quantisation.precisions.neighbours import owners
from tilesmith.capabilities.quantisation.preparation.plan import WeightedLayer
from tilesmith.capabilities.quantisation.search.emulation import Arrays
from tilesmith.jobs.compilation.compiling import at_one_size, executable_of
from tilesmith.jobs.measures.timing import pinned
from tilesmith.jobs.requests.request import Request
from tilesmith.records.database import Database
from tilesmith.records.trials.record import TuningRecord
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

if TYPE_CHECKING:
    from tilesmith.compiler.recipe.program import KernelStep
    from tilesmith.compiler.runtime.executable import Executable

RUNS = 11
"""Runs that kernels are timed in. The least of each counts: what disturbs a run makes it longer,
and kernels of two precisions are compared that were timed minutes apart."""

_TYPES = {FP32: TensorProto.FLOAT, BF16: TensorProto.BFLOAT16, INT8: TensorProto.UINT8}

Key = tuple[str, str]


@dataclass(frozen=True)
class KernelTime:
    """A kernel of a compiled model: its seconds, and the model's nodes whose work it does."""

    name: str
    sources: tuple[str, ...]
    seconds: float


@dataclass
class KernelClock:
    """Compiles models and times their kernels.

    Args:
        database: where times are kept; None: nowhere.
        threads: that kernels use.
    """

    target: Target
    database: str | None = None
    threads: int = 1
    measured: int = 0
    known: int = 0
    _seconds: dict[Key, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.database is not None:
            Database.open(self.database).close()  # makes it

    def compiled(self, proto: onnx.ModelProto, inputs: Arrays) -> "Executable":
        """A model, compiled with the database's schedules for inputs of these shapes."""
        shapes = {name: tuple(array.shape) for name, array in inputs.items()}
        request = Request(proto, self.target, self.database, threads=self.threads, shapes=shapes)
        return at_one_size(executable_of(request), shapes)

    def kernels(self, executable: "Executable", inputs: Arrays) -> list[KernelTime]:
        """Every kernel's time; kernels of models that need the host are timed one and all."""
        from tilesmith.compiler.recipe.program import KernelStep

        steps = [step for step in executable.recipe.steps if isinstance(step, KernelStep)]
        self._look_up(steps)
        if any((step.workload, step.config) not in self._seconds for step in steps):
            self._time(executable, inputs)
        else:
            self.known += len(steps)
        known = [step for step in steps if (step.workload, step.config) in self._seconds]
        return [
            KernelTime(step.name, step.sources, self._seconds[step.workload, step.config])
            for step in known
        ]

    def _look_up(self, steps: "Iterable[KernelStep]") -> None:
        if self.database is None:
            return
        with Database.open(self.database) as opened:
            for text in dict.fromkeys(step.workload for step in steps):
                trials = opened.known(text, self.target, self.threads, measured_by="hardware")
                for trial in trials:
                    if trial.result.ok:
                        key = (text, trial.config.key)
                        self._seconds[key] = min(trial.result.samples)

    def _time(self, executable: "Executable", inputs: Arrays) -> None:
        from tilesmith.compiler.recipe.program import KernelStep
        from tilesmith.compiler.runtime.profiling import kernel_times, profiled

        with pinned(self.threads):
            times = kernel_times(executable, inputs, RUNS)
            if not times:  # loops, branches or nodes on the host
                steps = profiled(executable, inputs, runs=RUNS).steps
                times = [(t.step, (t.us / 1e6,)) for t in steps if isinstance(t.step, KernelStep)]
        taken: dict[Key, list[float]] = {}
        for step, samples in times:
            taken.setdefault((step.workload, step.config), []).extend(samples)
        fresh = {key: tuple(v) for key, v in taken.items() if min(v) > 0}
        self._seconds |= {key: min(samples) for key, samples in fresh.items()}
        self.measured += len(fresh)
        self._keep(fresh)

    def _keep(self, fresh: Mapping[Key, tuple[float, ...]]) -> None:
        if self.database is None:
            return
        records = [
            TuningRecord.of(
                Workload.parse(workload), self.target, Config.from_json(config),
                MeasureResult("ok", "hardware", samples), threads=self.threads,
            )
            for (workload, config), samples in fresh.items()
        ]  # fmt: skip
        with Database.open(self.database) as opened:
            opened.add(records)


@dataclass(frozen=True)
class MeasuredTimes:
    """Seconds of a model's parts.

    Attributes:
        layers: by layer and precision.
        rest: what runs before all layers, in float32.
        conversions: by elements and (precision before, after).
        totals: by precision, of all kernels of the model with all layers in it.
    """

    layers: Mapping[str, Mapping[str, float]]
    rest: float
    conversions: Mapping[int, Mapping[tuple[str, str], float]]
    totals: Mapping[str, float]

    def edge(self, elements: int, codes: bool) -> dict[tuple[str, str], float]:
        """What a tensor's conversion costs, by precisions before and after.

        Args:
            codes: whether making bytes of it is in its reader's time already.
        """
        known = self.conversions[elements]
        costs: dict[tuple[str, str], float] = {}
        for before in (FP32, BF16, INT8, INT4):
            for after in (FP32, BF16, INT8, INT4):
                a, b = (FP32 if p == INT4 else p for p in (before, after))
                cost = known.get((a, b), 0.0)
                if b == INT8 and codes:
                    cost = 0.0
                costs[before, after] = cost
        return costs


def measured_times(
    mixed: MixedModel,
    sample: Arrays,
    clock: KernelClock,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[MeasuredTimes, frozenset[str]]:
    """Times of all layers in all precisions, and the layers that make their own bytes."""
    layers: dict[str, dict[str, float]] = {layer.node: {} for layer in mixed.layers}
    totals: dict[str, float] = {}
    coding: set[str] = set()
    rest = 0.0
    for precision in (FP32, BF16, INT8, INT4):
        plan = mixed.uniform(precision)
        if not plan:
            continue
        tell(f"timing kernels of {len(plan)} layers in {precision}")
        proto = mixed.written(plan)
        executable = clock.compiled(proto, sample)
        kernels = clock.kernels(executable, sample)
        shares, unowned = _shared(kernels, owners(proto, mixed.layers), layers)
        totals[precision] = sum(kernel.seconds for kernel in kernels)
        rest = unowned if precision == FP32 else rest
        for node in plan:
            layers[node][precision] = shares.get(node, 0.0)
        if precision == INT8:
            coding = _coding(kernels, owners(proto, mixed.layers), layers)
    sizes = {elements_of(mixed, layer) for layer in mixed.layers}
    tell(f"timing conversions of {len(sizes)} sizes")
    conversions = _conversions(sorted(sizes), mixed.narrow, clock)
    return MeasuredTimes(layers, rest, conversions, totals), frozenset(coding)


def elements_of(mixed: MixedModel, layer: WeightedLayer) -> int:
    """Elements of what a layer reads, in one sample."""
    return mixed.elements[layer.source]


def _shared(
    kernels: Iterable[KernelTime], owned: Mapping[str, str], layers: Mapping[str, Any]
) -> tuple[dict[str, float], float]:
    """By layer the seconds of its kernels, and those of no layer's."""
    shares: dict[str, float] = {}
    rest = 0.0
    for kernel in kernels:
        own = [name for name in kernel.sources if name in layers]
        own = own or [owned[name] for name in kernel.sources if name in owned][:1]
        for name in own:
            shares[name] = shares.get(name, 0.0) + kernel.seconds / len(own)
        if not own and kernel.sources:
            rest += kernel.seconds
    return shares, rest


def _coding(
    kernels: Iterable[KernelTime], owned: Mapping[str, str], layers: Mapping[str, Any]
) -> set[str]:
    """The layers for whose input a kernel makes bytes and does nothing else."""
    return {
        owned[name]
        for kernel in kernels
        if len(kernel.sources) == 1
        for name in kernel.sources
        if name.endswith("/QuantizeLinear") and name in owned
    } & layers.keys()


def _conversions(
    sizes: Sequence[int], narrow: bool, clock: KernelClock
) -> dict[int, dict[tuple[str, str], float]]:
    """Seconds of each conversion of each number of elements."""
    known = (FP32, BF16, INT8) if narrow else (FP32, INT8)
    proto, inputs = _conversion_model(sizes, known)
    seconds: dict[str, float] = {}
    for kernel in clock.kernels(clock.compiled(proto, inputs), inputs):
        for source in kernel.sources:
            seconds[source] = seconds.get(source, 0.0) + kernel.seconds
    return {
        size: {
            (before, after): seconds.get(f"{size}:{before}:{after}", 0.0)
            for before in known
            for after in known
            if before != after
        }
        for size in sizes
    }


def _conversion_model(
    sizes: Sequence[int], known: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model that converts a tensor of each size from every precision to every other."""
    nodes, inputs, outputs = [], [], []
    arrays: dict[str, Any] = {}
    rng = np.random.default_rng(0)
    for size in sizes:
        for before in known:
            source = f"{size}:{before}"
            inputs.append(helper.make_tensor_value_info(source, _TYPES[before], (size,)))
            dtype = to_numpy("bfloat16") if before == BF16 else np.float32
            values = rng.standard_normal(size)
            arrays[source] = (values * 50 + 128).clip(0, 255).astype(np.uint8)
            if before != INT8:
                arrays[source] = values.astype(dtype)
            for after in known:
                if after != before:
                    name = f"{size}:{before}:{after}"
                    nodes += _converting(source, name, before, after)
                    kind = _TYPES[after]
                    outputs.append(helper.make_tensor_value_info(name, kind, (size,)))
    constants = [
        helper.make_tensor("scale", TensorProto.FLOAT, (), [0.02]),
        helper.make_tensor("zero", TensorProto.UINT8, (), [128]),
    ]
    graph = helper.make_graph(nodes, "conversions", inputs, outputs, constants)
    opset = helper.make_opsetid("", 22)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10), arrays


def _converting(source: str, name: str, before: str, after: str) -> list[onnx.NodeProto]:
    float_ = f"{name}:float"
    match before, after:
        case "fp32", "int8":
            return [helper.make_node("QuantizeLinear", [source, "scale", "zero"], [name], name)]
        case "bf16", "int8":
            return [
                helper.make_node("Cast", [source], [float_], name + ":", to=TensorProto.FLOAT),
                helper.make_node("QuantizeLinear", [float_, "scale", "zero"], [name], name),
            ]
        case "int8", "fp32":
            return [helper.make_node("DequantizeLinear", [source, "scale", "zero"], [name], name)]
        case "int8", "bf16":
            return [
                helper.make_node("DequantizeLinear", [source, "scale", "zero"], [float_], name),
                helper.make_node("Cast", [float_], [name], name + ":", to=TensorProto.BFLOAT16),
            ]
        case _:
            return [helper.make_node("Cast", [source], [name], name, to=_TYPES[after])]
