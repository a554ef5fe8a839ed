"""The job: precisions chosen for a float32 model, or taken from a file, and the model written."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx.numpy_helper import to_array

from tilesmith.capabilities.quantisation.numbers.block_weights import BITS, Blocks
from tilesmith.capabilities.quantisation.numbers.parameters import weight_error
from tilesmith.capabilities.quantisation.numbers.ranges import Method
from tilesmith.capabilities.quantisation.precisions.choosing import (
    AIMS,
    Data,
    PrecisionChoice,
    split,
)
from tilesmith.capabilities.quantisation.precisions.mixed import INT4, MixedModel
from tilesmith.capabilities.quantisation.precisions.plan_file import read_plan
from tilesmith.capabilities.quantisation.precisions.times import KernelClock
from tilesmith.capabilities.quantisation.preparation.float_model import FloatModel
from tilesmith.capabilities.quantisation.preparation.plan import OPERATORS
from tilesmith.capabilities.quantisation.search.calibration import refuse_infinite
from tilesmith.capabilities.quantisation.search.emulation import Arrays, Floats
from tilesmith.capabilities.quantisation.search.equalisation import equalised
from tilesmith.capabilities.quantisation.search.quantise import (
    Quantised,
    QuantiseOptions,
    Watch,
    chosen_layers,
)
from tilesmith.jobs.measures.output_errors import accuracy
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import InputError


def with_precisions(
    model: FloatModel,
    samples: Sequence[Arrays],
    target: Target,
    options: QuantiseOptions,
    database: str | None = None,
    plan: Mapping[str, str] | str | Path | None = None,
    watch: Watch = lambda text: None,
) -> Quantised:
    """A model whose layers have the precisions that cost least within the budget.

    Args:
        samples: of the model's inputs; a quarter of those that errors are measured on is held out.
        target: what it is to run on: this machine.
        database: where kernels' times are looked up and kept.
        plan: precisions by layer, or a file of them, to be taken as they are.

    Raises:
        DependencyError: OR-tools is not installed, and precisions are to be chosen.
        InputError: no budget, too few samples, or a plan that is not this model's.
        ModelError: nothing in the model has weights.
    """
    refuse_infinite(samples)
    order = np.random.default_rng(options.seed).permutation(len(samples))
    drawn, calibrating = split(samples, options.samples, [int(place) for place in order])
    judging = {id(sample) for sample in drawn[calibrating:]}
    seen = [sample for sample in samples if id(sample) not in judging]
    if options.equalise:
        watch(f"balancing channels on {len(seen)} samples")
        model = equalised(model, seen, target, options.threads)
    mixed, floats = _calibrated(model, seen, target, options, watch)
    given = None if plan is None else read_plan(plan, mixed)
    outputs = [
        {name: tensors[name] for name in model.outputs} for tensors in map(floats.run, drawn)
    ]
    choice = PrecisionChoice(
        mixed,
        Data(drawn, outputs, calibrating),
        options.minimise if options.minimise in AIMS else AIMS[0],
        np.inf if options.budget is None else options.budget,
        KernelClock(target, database, options.threads),
        watch,
    )
    proto, report = choice.done(given)
    chosen = mixed.parameters(report.plan)
    layers = tuple(layer for layer in mixed.layers if layer.node in report.plan)
    executable = choice.clock.compiled(proto, drawn[0])
    return Quantised(
        model=proto,
        layers=layers,
        kept=tuple(layer.node for layer in mixed.layers if layer.node not in report.plan),
        sensitivities=(),
        accuracy=accuracy(executable.run, drawn[calibrating:], outputs[calibrating:]),
        calibrated=len(seen),
        measured=len(drawn) - calibrating,
        float_bytes=sum(value.nbytes for value in model.constants.values()),
        quantised_bytes=sum(to_array(t).nbytes for t in proto.graph.initializer),
        weight_error=weight_error(model, replace(chosen, plan=replace(chosen.plan, layers=layers))),
        precisions=report,
    )


def _calibrated(
    model: FloatModel,
    samples: Sequence[Arrays],
    target: Target,
    options: QuantiseOptions,
    watch: Watch,
) -> tuple[MixedModel, Floats]:
    """The model with the ranges of all that may become bytes."""
    from tilesmith.capabilities.quantisation.search.ways import WithBytes

    whole = WithBytes(
        model,
        chosen_layers(model, options),
        tuple(options.operators) or OPERATORS,
        frozenset(options.keep),
        Method.parse(options.method),
        options.symmetric,
        fuse_residuals=True,
    )
    floats = Floats(model, whole.seen, target, options.threads)
    watch(f"calibrating {len(whole.seen)} tensors on {len(samples)} samples")
    whole.calibrate(floats, samples)
    blocks = Blocks(BITS[INT4], options.block, options.symmetric, search=True)
    return MixedModel.of(whole, blocks, len(samples)), floats


def check_aim(options: QuantiseOptions, planned: bool) -> None:
    """Refuse options that do not go with precisions for each layer, in a sentence."""
    if options.weights:
        raise InputError(
            f"weights = '{options.weights}' gives all layers one precision; leave it out where "
            f"precisions are chosen for {options.minimise}"
        )
    if options.budget is None and not planned:
        raise InputError(
            f"choosing precisions for {options.minimise} needs the error allowed: a budget of 0.01 "
            "is 1 % of the outputs' norm"
        )
