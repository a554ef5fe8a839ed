"""Fourier transforms: ONNX's DFT along one axis after the other.

A whole transform of real numbers (RFFT) takes half of the frequencies, of which the other half is
the conjugate; its inverse (IRFFT) puts that half back first.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from tilesmith.capabilities.stablehlo.arithmetic import choose
from tilesmith.capabilities.stablehlo.attributes import integers, tensor_type
from tilesmith.capabilities.stablehlo.builder import GraphBuilder, TensorValue
from tilesmith.capabilities.stablehlo.pairs import Complex, paired, parted, parts, stacked
from tilesmith.capabilities.stablehlo.rules.elementwise import word
from tilesmith.capabilities.stablehlo.rules.shapes import concatenate, part, reverse
from tilesmith.capabilities.stablehlo.translator import Translation, Values, rules


@rules.register("complex.stablehlo.fft")
def _fft(translation: Translation, operation: Any, values: Values) -> Values:
    b, (x,) = translation.builder, values
    lengths = integers(operation, "fft_length")
    kind, rank = word(operation, "fft_type"), len(x.shape)
    axes = list(range(rank - len(lengths), rank))
    shape = tensor_type(operation.results[0].type, operation.name).shape
    if 0 in (*x.shape, *shape):
        nothing = replace(b.like(0, x), shape=shape)
        return [nothing if kind == "IRFFT" else paired(nothing, nothing)]
    if kind == "RFFT":
        spectrum: Complex = _transformed(b, x, axes[-1], halved=True)
        axes = axes[:-1]
    elif kind == "IRFFT":
        assert isinstance(x, Complex)
        for axis in axes[:-1]:
            x = _transformed(b, x, axis, inverse=True)
        spectrum = _transformed(b, _completed(b, x, lengths[-1]), axes[-1], inverse=True)
        return [spectrum.real]
    else:
        assert isinstance(x, Complex)
        spectrum = x
    for axis in axes:
        spectrum = _transformed(b, spectrum, axis, inverse=kind == "IFFT")
    return [spectrum]


def _transformed(
    b: GraphBuilder, x: TensorValue, axis: int, inverse: bool = False, halved: bool = False
) -> Complex:
    """Along one axis; `halved`: the frequencies up to half of them."""
    pair = stacked(b, x)
    if not isinstance(x, Complex):
        pair = b.reshape(b.full(x), (*x.shape, 1))
    extent = x.shape[axis]
    shape = [*x.shape, 2]
    shape[axis] = extent // 2 + 1 if halved else extent
    place = b.constant(np.array(axis, np.int64)).name
    transformed = b.add(
        "DFT", [b.full(pair).name, "", place], x.dtype, tuple(shape),
        inverse=int(inverse), onesided=int(halved),
    )  # fmt: skip
    return parted(b, transformed)


def _completed(b: GraphBuilder, x: Complex, length: int) -> Complex:
    """All frequencies of real numbers, of the first half of them along the last axis.

    The first, and the middle one of an even number, are those of real numbers: what imaginary part
    they have is not looked at.
    """
    axis, half = len(x.shape) - 1, length // 2 + 1
    real, imaginary = (b.full(part(b, side, axis, 0, half)) for side in parts(x))
    places = np.arange(half)
    kept = b.constant((places > 0) & (2 * places != length))
    imaginary = choose(b, kept, imaginary, b.like(0, imaginary))
    high = (length + 1) // 2
    sides = [reverse(b, part(b, side, axis, 1, high), (axis,)) for side in (real, imaginary)]
    turned = b.elementwise("Neg", sides[1])
    return paired(concatenate(b, [real, sides[0]], axis), concatenate(b, [imaginary, turned], axis))
