"""`quantised`: from a float32 model and samples to a model with Q/DQ pairs, and what it costs.

    observe the float32 model -> choose scales -> (find the layers to keep) -> write -> run, compare

What the report says of the accuracy was computed by the written model, compiled as any other.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import onnx
from onnx.numpy_helper import to_array

from tilesmith.compiler.quantisation.calibration import observed, refuse_infinite
from tilesmith.compiler.quantisation.emulation import Arrays, Compiled, Emulation, Floats
from tilesmith.compiler.quantisation.errors import Accuracy, accuracy
from tilesmith.compiler.quantisation.float_model import FloatModel
from tilesmith.compiler.quantisation.insertion import with_pairs
from tilesmith.compiler.quantisation.parameters import Calibration
from tilesmith.compiler.quantisation.plan import (
    OPERATORS,
    Layer,
    Plan,
    layers_of,
    multiplications,
)
from tilesmith.compiler.quantisation.ranges import Method
from tilesmith.compiler.quantisation.sensitivities import Sensitivity, fewest_kept, sensitivities
from tilesmith.search_space.errors import InputError, ModelError
from tilesmith.search_space.target import Target

Watch = Callable[[str], None]


@dataclass(frozen=True)
class QuantiseOptions:
    """How a model is quantised.

    Attributes:
        method: see `ranges`.
        symmetric: activations in int8 around zero instead of uint8.
        operators: those of `plan.OPERATORS` that may be quantised.
        keep: names of nodes that stay in float32.
        budget: the greatest error allowed; the most sensitive layers are kept for it.
        sensitivities: whether to find each layer's, without a budget too.
        measured: places of the samples that accuracy is measured on; None: all. All calibrate.
        threads: that the float32 model runs with.
    """

    method: str = "minmax"
    symmetric: bool = False
    operators: tuple[str, ...] = OPERATORS
    keep: tuple[str, ...] = ()
    budget: float | None = None
    sensitivities: bool = False
    measured: tuple[int, ...] | None = None
    threads: int = 1


@dataclass(frozen=True)
class Quantised:
    """A quantised model and what it costs.

    Attributes:
        model: ONNX, with Q/DQ pairs.
        layers: what is quantised.
        kept: nodes of layers that stay in float32.
        sensitivities: the most sensitive first; empty where nobody asked.
        accuracy: of the model's outputs, on samples.
        calibrated: how many samples there were.
        measured: how many of them accuracy was measured on.
        float_bytes, quantised_bytes: of the weights.
    """

    model: onnx.ModelProto
    layers: tuple[Layer, ...]
    kept: tuple[str, ...]
    sensitivities: tuple[Sensitivity, ...]
    accuracy: Accuracy
    calibrated: int
    measured: int
    float_bytes: int
    quantised_bytes: int


def quantised(
    model: FloatModel,
    samples: Sequence[Arrays],
    target: Target,
    options: QuantiseOptions = QuantiseOptions(),
    watch: Watch = lambda text: None,
) -> Quantised:
    """Quantise a model.

    Args:
        samples: the model's inputs, as often as there is data.
        target: what the float32 model runs on: this machine.
        watch: told what is being done.

    Raises:
        InputError: no samples, a sample that is not finite, unknown names among the options.
        ModelError: nothing in the model can be quantised, or it does not run on the samples.
    """
    work = _Work(model, samples, target, options, watch)
    kept, found = work.decide()
    return work.written(kept, found)


class _Work:
    """One job, in steps."""

    def __init__(
        self,
        model: FloatModel,
        samples: Sequence[Arrays],
        target: Target,
        options: QuantiseOptions,
        watch: Watch,
    ) -> None:
        if not samples:
            raise InputError(
                "no calibration data: scales follow from what the model sees; give arrays of its "
                "inputs with --data"
            )
        refuse_infinite(samples)
        method = Method.parse(options.method)
        self._model, self._samples, self._target = model, samples, target
        self._options, self._watch = options, watch
        self._layers = _chosen_layers(model, options)
        self._full = self._plan(self._layers)
        seen = tuple(self._full.groups)
        watch(f"calibrating {len(seen)} tensors on {len(samples)} samples")
        floats = Floats(model, seen, target, options.threads)
        self._calibration = Calibration(
            model, observed(floats, seen, samples), method, options.symmetric
        )
        places = range(len(samples)) if options.measured is None else options.measured
        self._measured = [samples[place] for place in places]
        self._expected = [
            {name: found[name] for name in model.outputs}
            for found in map(floats.run, self._measured)
        ]

    def _plan(self, layers: Iterable[Layer]) -> Plan:
        kept = frozenset(self._options.keep)
        return Plan.of(self._model, layers, self._options.operators, kept)

    def decide(self) -> tuple[set[str], tuple[Sensitivity, ...]]:
        """The layers that stay in float32, and every layer's sensitivity if somebody asked."""
        budget = self._options.budget
        if budget is None and not self._options.sensitivities:
            return set(), ()
        emulation = Emulation(self._model, self._full, self._target, self._options.threads)

        def error_of(layers: Sequence[Layer]) -> float:
            chosen = self._calibration.parameters(self._plan(layers))
            return accuracy(
                lambda sample: emulation.run(sample, chosen), self._measured, self._expected
            ).error

        count = len(self._layers)
        self._watch(f"sensitivities of {count} layers on {len(self._measured)} samples")
        found = sensitivities(self._layers, self._multiplications(), error_of)
        if budget is None:
            return set(), found
        self._watch(f"layers to keep in float32 for an error of {budget:g}")
        return fewest_kept(found, budget, error_of), found

    def _multiplications(self) -> dict[str, int]:
        sizes = {layer.node: self._calibration.seen[layer.source].total for layer in self._layers}
        return {
            layer.node: multiplications(self._model, layer, sizes[layer.node])
            for layer in self._layers
        }

    def written(self, kept: set[str], found: tuple[Sensitivity, ...]) -> Quantised:
        """The model without the kept ones' quantisation, written and compared."""
        layers = tuple(layer for layer in self._layers if layer.node not in kept)
        chosen = self._calibration.parameters(self._plan(layers))
        proto = with_pairs(self._model, chosen)
        self._watch(f"comparing the quantised model on {len(self._measured)} samples")
        compiled = Compiled(proto, self._target, self._options.threads)
        return Quantised(
            model=proto,
            layers=layers,
            kept=tuple(layer.node for layer in layers_of(self._model) if layer not in layers),
            sensitivities=found,
            accuracy=accuracy(compiled.run, self._measured, self._expected),
            calibrated=len(self._samples),
            measured=len(self._measured),
            float_bytes=sum(value.nbytes for value in self._model.constants.values()),
            quantised_bytes=sum(to_array(t).nbytes for t in proto.graph.initializer),
        )


def _chosen_layers(model: FloatModel, options: QuantiseOptions) -> tuple[Layer, ...]:
    """The layers that may be quantised.

    Raises:
        InputError: an operator or a node to keep is unknown.
        ModelError: there are none.
    """
    for name in options.operators:
        if name not in OPERATORS:
            raise InputError(
                f"operator '{name}' cannot be quantised; {', '.join(OPERATORS)} can be"
            )
    for name in options.keep:
        if name not in model.by_name:
            raise InputError(f"{unknown_node(name, model)}; leave it out of --keep")
    found = layers_of(model)
    if not found:
        raise ModelError(
            f"nothing in '{model.name}' can be quantised: it has no Conv, MatMul or Gemm with "
            "constant weights of float32"
        )
    chosen = tuple(
        layer
        for layer in found
        if layer.operator in options.operators and layer.node not in options.keep
    )
    if not chosen:
        raise InputError(
            f"--keep and --operators leave nothing of '{model.name}' to quantise; it has "
            f"{len(found)} layers, the first is {found[0].operator} '{found[0].node}'"
        )
    return chosen


def unknown_node(name: str, model: FloatModel) -> str:
    """A sentence's beginning about a name that no node has."""
    near = difflib.get_close_matches(name, model.by_name, n=1, cutoff=0.5)
    hint = f", but '{near[0]}'" if near else ""
    return f"'{model.name}' has no node '{name}'{hint}"
