"""What a compiled model computes, beside onnxruntime, and how far onnxruntime moves by itself.

A quantised model is as good as its ties: a byte more or less in one place goes through all layers
behind it. So the reference is asked again of inputs that are larger or smaller by a millionth or
three; what is off by no more than those answers differ among themselves is right.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from tilesmith.compiler.runtime.executable import Executable

SHAKES = (1 + 1e-6, 1 - 1e-6, 1 + 3e-6, 1 - 3e-6)
"""Factors of the inputs: float32 holds numbers to 6e-8 of them."""

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Away:
    """How far results are from the reference's, of all outputs the worst.

    Attributes:
        worst: max |a - b|.
        relative: the same over max |b|.
        norm: the norm of the difference over that of the result.
        largest: max |b|.
    """

    worst: float
    relative: float
    norm: float
    largest: float


@dataclass(frozen=True)
class Beside:
    """A model beside onnxruntime.

    Attributes:
        ours: how far it is away.
        shaken: how far onnxruntime itself is, of shaken inputs: of each measure the most.
        seconds: that our run took.
    """

    ours: Away
    shaken: Away
    seconds: float


def beside(executable: Executable, model: onnx.ModelProto, inputs: Arrays) -> Beside:
    """Run both on some inputs; onnxruntime without optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    began = time.perf_counter()
    found = executable.run(inputs)
    took = time.perf_counter() - began
    theirs = session.run(names, inputs)
    moved = []
    for factor in SHAKES:
        shaken = {
            name: array * np.float32(factor) if array.dtype == np.float32 else array
            for name, array in inputs.items()
        }
        moved.append(away(session.run(names, shaken), theirs))
    return Beside(away([found[name] for name in names], theirs), most(moved), took)


def away(
    found: Sequence[NDArray[np.generic]], wanted: Sequence[NDArray[np.generic]]
) -> Away:  # fmt: skip
    """Results beside the reference's, in its order."""
    every = []
    for ours, theirs in zip(found, wanted, strict=True):
        difference = np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)
        worst, largest = float(np.abs(difference).max()), float(np.abs(theirs).max())
        norm = float(np.linalg.norm(difference) / np.linalg.norm(np.asarray(theirs, np.float64)))
        every.append(Away(worst, worst / largest, norm, largest))
    return most(every)


def most(every: Sequence[Away]) -> Away:
    """The largest of each measure."""
    return Away(
        max(one.worst for one in every), max(one.relative for one in every),
        max(one.norm for one in every), max(one.largest for one in every),
    )  # fmt: skip
