"""`quantised`: from a float32 model and samples to a model with Q/DQ pairs, and what it costs.

    observe the float32 model -> choose scales -> (find the layers to keep) -> write -> run, compare

What the report says of the accuracy was computed by the written model, compiled as any other.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx.numpy_helper import to_array

from tilesmith.capabilities.quantisation.numbers.block_weights import BITS, Blocks
from tilesmith.capabilities.quantisation.numbers.parameters import weight_error
from tilesmith.capabilities.quantisation.numbers.ranges import Method
from tilesmith.capabilities.quantisation.preparation.float_model import FloatModel
from tilesmith.capabilities.quantisation.preparation.plan import OPERATORS, WeightedLayer, layers_of
from tilesmith.capabilities.quantisation.search.calibration import refuse_infinite
from tilesmith.capabilities.quantisation.search.emulation import (
    Arrays,
    CompiledForShapes,
    Emulation,
    Floats,
)
from tilesmith.capabilities.quantisation.search.equalisation import equalised
from tilesmith.capabilities.quantisation.search.sensitivities import (
    LayerSensitivity,
    fewest_kept,
    sensitivities,
)
from tilesmith.capabilities.quantisation.search.ways import Way, WithBlocks, WithBytes
from tilesmith.jobs.measures.output_errors import Accuracy, accuracy
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import InputError, ModelError
from tilesmith.search_space.support.json_object import JsonObject

Watch = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class QuantiseOptions:
    """How a model is quantised: a command's options, keywords of `tilesmith.quantize`.

    Attributes:
        method: see `ranges`.
        symmetric: activations in int8 around zero instead of uint8; blocks around zero.
        operators: those of `plan.OPERATORS` that may be quantised; empty: all of them.
        keep: names of nodes that stay in float32.
        budget: the greatest error allowed; the most sensitive layers are kept for it.
        minimise: within the budget: "work" in float32, one precision for all layers that leave it;
            "latency" or "size", each layer with a precision of its own.
        sensitivities: whether to find each layer's, without a budget too.
        samples: how many samples accuracy is measured on, drawn with `seed`. All calibrate.
        threads: that the float32 model runs with.
        weights: "int4" or "int8": weights of products alone, in blocks; "": layers in bytes.
        block: rows of a block.
        equalise: balance channels between layers first (`equalisation`).
        fuse_residuals: what a layer gives to a sum alone is not rounded before it (`plan`), and
            zero points are even.
    """

    method: str = "minmax"
    symmetric: bool = False
    operators: Sequence[str] = ()
    keep: Sequence[str] = ()
    budget: float | None = None
    minimise: str = "work"
    sensitivities: bool = False
    samples: int = 16
    seed: int = 0
    threads: int = 1
    weights: str = ""
    block: int = 32
    equalise: bool = False
    fuse_residuals: bool = False


@dataclass(frozen=True)
class Quantised:
    """A quantised model and what it costs.

    Attributes:
        model: ONNX, with Q/DQ pairs, or with weights in blocks.
        layers: what is quantised.
        kept: nodes of layers that stay in float32.
        sensitivities: the most sensitive first; empty where nobody asked.
        accuracy: of the model's outputs, on samples; None where there are none.
        calibrated: how many samples there were.
        measured: how many of them accuracy was measured on.
        float_bytes, quantised_bytes: of the weights.
        weight_error: the norm of what quantised weights differ by, by their norm.
        precisions: what choosing a precision for each layer came to (`precisions.report`); None
            where all have one.
    """

    model: onnx.ModelProto
    layers: tuple[WeightedLayer, ...]
    kept: tuple[str, ...]
    sensitivities: tuple[LayerSensitivity, ...]
    accuracy: Accuracy | None
    calibrated: int
    measured: int
    float_bytes: int
    quantised_bytes: int
    weight_error: float
    precisions: JsonObject | None = None


def quantised(
    model: FloatModel,
    samples: Sequence[Arrays],
    target: Target,
    options: QuantiseOptions = QuantiseOptions(),
    watch: Watch = lambda text: None,
) -> Quantised:
    """Quantise a model.

    Args:
        samples: the model's inputs, as often as there is data; weights in blocks need none.
        target: what the float32 model runs on: this machine.
        watch: told what is being done.

    Raises:
        InputError: no samples, a sample that is not finite, unknown names among the options.
        ModelError: nothing in the model can be quantised, or it does not run on the samples.
    """
    refuse_infinite(samples)
    method = Method.parse(options.method)
    if options.equalise and samples:
        watch(f"balancing channels on {len(samples)} samples")
        model = equalised(model, samples, target, options.threads)
    layers = chosen_layers(model, options)
    if options.weights:
        way: Way = WithBlocks(model, layers, _blocks(options, method))
        floats = Floats(model, (), target, options.threads)
    else:
        kept = frozenset(options.keep)
        operators = tuple(options.operators) or OPERATORS
        way = bytes_ = WithBytes(
            model, layers, operators, kept, method, options.symmetric, options.fuse_residuals
        )
        floats = Floats(model, bytes_.seen, target, options.threads)
        watch(f"calibrating {len(bytes_.seen)} tensors on {len(samples)} samples")
        bytes_.calibrate(floats, samples)
    return _Work(way, floats, samples, target, options, watch).done()


class _Work:
    """Chooses layers, writes the model and compares it, by any way of quantising."""

    def __init__(
        self,
        way: Way,
        floats: Floats,
        samples: Sequence[Arrays],
        target: Target,
        options: QuantiseOptions,
        watch: Watch,
    ) -> None:
        self._way, self._target = way, target
        self._options, self._watch = options, watch
        self._calibrated = len(samples)
        drawn = np.random.default_rng(options.seed).permutation(len(samples))[: options.samples]
        self._measured = [samples[place] for place in sorted(drawn)]
        outputs = way.model.outputs
        self._expected = [
            {name: tensors[name] for name in outputs} for tensors in map(floats.run, self._measured)
        ]

    def done(self) -> Quantised:
        """Quantise, write and compare."""
        kept, sensitivities = self._decided()
        layers = tuple(layer for layer in self._way.layers if layer.node not in kept)
        chosen = self._way.chosen(layers)
        proto = self._way.written(chosen)
        constants = self._way.model.constants.values()
        every = _layers(self._way.model, self._options)
        return Quantised(
            model=proto,
            layers=layers,
            kept=tuple(layer.node for layer in every if layer not in layers),
            sensitivities=sensitivities,
            accuracy=self._accuracy(proto),
            calibrated=self._calibrated,
            measured=len(self._measured),
            float_bytes=sum(value.nbytes for value in constants),
            quantised_bytes=sum(to_array(t).nbytes for t in proto.graph.initializer),
            weight_error=weight_error(self._way.model, chosen),
        )

    def _accuracy(self, proto: onnx.ModelProto) -> Accuracy | None:
        if not self._measured:
            return None
        self._watch(f"comparing the quantised model on {len(self._measured)} samples")
        compiled = CompiledForShapes(proto, self._target, self._options.threads)
        return accuracy(compiled.run, self._measured, self._expected)

    def _decided(self) -> tuple[set[str], tuple[LayerSensitivity, ...]]:
        """The layers that stay in float32, and every layer's sensitivity where it was requested."""
        way, budget = self._way, self._options.budget
        if budget is None and not self._options.sensitivities:
            return set(), ()
        emulation = Emulation(way.model, way.full, self._target, self._options.threads)

        def error_of(layers: Sequence[WeightedLayer]) -> float:
            chosen = way.chosen(layers)
            return accuracy(
                lambda sample: emulation.run(sample, chosen), self._measured, self._expected
            ).error

        self._watch(f"sensitivities of {len(way.layers)} layers on {len(self._measured)} samples")
        work = {layer.node: way.work(layer) for layer in way.layers}
        ranked = sensitivities(way.layers, work, error_of)
        if budget is None:
            return set(), ranked
        self._watch(f"layers to keep in float32 for an error of {budget:g}")
        return fewest_kept(ranked, budget, error_of), ranked


def _blocks(options: QuantiseOptions, method: Method) -> Blocks:
    if options.weights not in BITS:
        raise InputError(
            f"weights = '{options.weights}' is unknown; {' or '.join(BITS)} in blocks is expected"
        )
    if method.name == "percentile":
        raise InputError(
            f"the method '{options.method}' is for activations; weights in blocks take minmax, or "
            "mse, which searches each block's range"
        )
    bits, search = BITS[options.weights], method.name == "mse"
    return Blocks(bits, options.block, options.symmetric, search)


def chosen_layers(model: FloatModel, options: QuantiseOptions) -> tuple[WeightedLayer, ...]:
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
            raise InputError(f"{unknown_node(name, model)}; leave it out of --keep-node")
    layers = _layers(model, options)
    if not layers:
        which = "MatMul or Gemm" if options.weights else "Conv, MatMul or Gemm"
        hint = "; without --weights convolutions are quantised, too" if options.weights else ""
        raise ModelError(
            f"nothing in '{model.name}' can be quantised: it has no {which} with constant weights "
            f"of float32{hint}"
        )
    chosen = tuple(
        layer
        for layer in layers
        if layer.operator in (options.operators or OPERATORS) and layer.node not in options.keep
    )
    if not chosen:
        raise InputError(
            f"--keep-node and --operators leave nothing of '{model.name}' to quantise; it has "
            f"{len(layers)} layers, the first is {layers[0].operator} '{layers[0].node}'"
        )
    return chosen


def _layers(model: FloatModel, options: QuantiseOptions) -> tuple[WeightedLayer, ...]:
    """The model's layers; weights in blocks are those of products alone."""
    layers = layers_of(model)
    return tuple(layer for layer in layers if not (options.weights and layer.operator == "Conv"))


def unknown_node(name: str, model: FloatModel) -> str:
    """A sentence's beginning about a name that no node has."""
    near = difflib.get_close_matches(name, model.by_name, n=1, cutoff=0.5)
    hint = f", but '{near[0]}'" if near else ""
    return f"'{model.name}' has no node '{name}'{hint}"
