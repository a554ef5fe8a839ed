"""Products of quantised tensors as products of whole numbers: what is computed of constants.

    (a - z) s  times  w t[j]  =  (sum of a w[j] - z sum of w[j]) s t[j]

The kernels' first operands are bytes and constant int8 weights; what follows the sums in int32 is
their epilogue (`search_space.workloads.epilogue`), whose numbers are operands.

Invariants: activations are uint8; the weights' zero point is 0; what the sums, `correction`
included, come to fits into int32.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.numerics.quantised import Coding, Weights
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.workloads.epilogue import EpilogueStep

Doubles = NDArray[np.float64]
Bounds = tuple[float, float]

UNBOUNDED: Bounds = (-np.inf, np.inf)

_MOST = 2**31 - 1


@dataclass(frozen=True, eq=False)
class QuantisedProduct:
    """A product of quantised tensors, in whichever operators a model has it.

    Attributes:
        node: Conv, MatMul, Gemm, MatMulInteger or ConvInteger.
        source: the activations' bytes.
        zero: their zero point: a number, or the tensor that it is.
        weights: OIHW of convolutions, [k, n] of matrices.
        steps: what one of each output channel's sums stands for.
        bias: in those steps, for each output channel.
    """

    node: Node
    source: str
    zero: int | str
    weights: Weights
    steps: Doubles
    bias: Doubles

    @property
    def convolution(self) -> bool:
        return self.node.operator.startswith("Conv")

    @property
    def channel_axis(self) -> int:
        """Of the weights: that of the output's channels."""
        return 0 if self.convolution else 1

    @property
    def weight_sums(self) -> NDArray[np.int64]:
        """For each output channel."""
        others = tuple(a for a in range(self.weights.values.ndim) if a != self.channel_axis)
        return np.asarray(self.weights.values.sum(axis=others, dtype=np.int64))

    @property
    def most(self) -> int:
        """What the sums without correction can come to."""
        others = tuple(a for a in range(self.weights.values.ndim) if a != self.channel_axis)
        wide = np.abs(self.weights.values.astype(np.int16))
        return int(255 * wide.sum(axis=others, dtype=np.int64).max(initial=0))


Epilogue = list[tuple[EpilogueStep, str]]
"""Steps and the tensor that each reads ("" for none)."""


@dataclass(frozen=True, eq=False)
class Requantisation:
    """What follows a product up to the bytes it becomes.

    Attributes:
        coding: of the result.
        bias: added to the products, in their steps.
        residual: bytes that are added behind it, and their coding.
        bounds: that the whole is kept within, behind that.
        passed: bytes that the products are before a residual is added, or before they become those
            of `coding`, if there are such.
        passed_bounds: that the products are kept within before that.
    """

    coding: Coding
    bias: Doubles
    residual: tuple[str, Coding] | None = None
    bounds: Bounds = UNBOUNDED
    passed: Coding | None = None
    passed_bounds: Bounds = UNBOUNDED


def float_constant(rewriter: Rewriter, base: str, value: Any) -> str:
    return rewriter.add_constant(base, np.ascontiguousarray(value, np.float32), "float32")


def corrected(
    rewriter: Rewriter, product: QuantisedProduct, shift: Doubles, epilogue: Epilogue
) -> Doubles | None:
    """Add the step that takes the zero point's part away and adds `shift`, as whole numbers.

    Returns what did not fit into int32 and has to be added as a floating number, in steps; None
    where all did.
    """
    assert isinstance(product.zero, int)
    base = -product.zero * product.weight_sums
    rounded = np.rint(shift)
    fits = np.abs(rounded + base).max(initial=0) + product.most <= _MOST
    whole = base + rounded.astype(np.int64) if fits else base
    name = rewriter.add_constant(
        f"{product.node.writes[0]}.correction", whole.astype(np.int32), "int32"
    )
    epilogue.append((EpilogueStep("correction"), name))
    return None if fits else shift


def to_bytes(rewriter: Rewriter, product: QuantisedProduct, after: Requantisation) -> Epilogue:
    """The epilogue that makes bytes of a product's sums.

    Behind `rescale` numbers are counted in the scale of the next bytes; before the last step that
    is the scale of the residual, if there is one, so that this is added as it is.
    """
    epilogue: Epilogue = []
    name = product.node.writes[0]
    last, pair = after.coding.scale, (1.0, float(after.coding.zero))
    shift = 0.0
    if after.residual is not None:
        other = after.residual[1]
        last, pair = other.scale, (other.scale / after.coding.scale, pair[1])
        shift = -float(other.zero)
    unit = last if after.passed is None else after.passed.scale
    outside = 0.0 if after.passed is not None else shift * last
    left = corrected(rewriter, product, after.bias + outside / product.steps, epilogue)
    factors = product.steps.astype(np.float32) / np.float32(unit)
    epilogue.append((EpilogueStep("rescale"), float_constant(rewriter, f"{name}.scale", factors)))
    if left is not None:
        rest = float_constant(rewriter, f"{name}.bias", left * product.steps / unit)
        epilogue.append((EpilogueStep("bias"), rest))
    if after.passed is not None:
        numbers = (*_range(after.passed, after.passed_bounds), unit / last, shift)
        operand = float_constant(rewriter, f"{name}.passed", numbers)
        epilogue.append((EpilogueStep("fake_quantise"), operand))
    if after.residual is not None:
        epilogue.append((EpilogueStep("residual_uint8"), after.residual[0]))
    bound = _bound(after.coding, after.bounds, last)
    if bound:
        epilogue.append((EpilogueStep.parse(bound), ""))
    operand = float_constant(rewriter, f"{name}.bytes", pair)
    epilogue.append((EpilogueStep(f"quantise_{after.coding.dtype}"), operand))
    return epilogue


def _range(coding: Coding, bounds: Bounds) -> Bounds:
    """Least and greatest of some bytes within bounds, counted from the zero point."""
    return tuple(float(coding.byte(bound) - coding.zero) for bound in bounds)  # type: ignore[return-value]


def _bound(coding: Coding, bounds: Bounds, unit: float) -> str:
    """The step that keeps numbers within bounds; "" where bytes do so anyway."""
    if within_bytes(coding, bounds):
        return ""
    low, high = bounds
    if low == 0 and coding.byte(high) == coding.byte(np.inf):
        return "relu"
    return f"clip:{low / unit:.9g}:{high / unit:.9g}"


def within_bytes(coding: Coding, bounds: Bounds) -> bool:
    """Whether no byte stands for a number outside some bounds."""
    low, high = bounds
    return coding.byte(low) == coding.byte(-np.inf) and coding.byte(high) == coding.byte(np.inf)


def to_numbers(rewriter: Rewriter, product: QuantisedProduct) -> Epilogue:
    """The epilogue that makes float32 numbers of a product's sums."""
    epilogue: Epilogue = []
    name = product.node.writes[0]
    whole = bool(np.all(np.abs(product.bias - np.rint(product.bias)) < 1e-3))
    shift = product.bias if whole else np.zeros_like(product.bias)
    left = corrected(rewriter, product, shift, epilogue)
    left = product.bias if left is not None or not whole else None
    epilogue.append(
        (EpilogueStep("rescale"), float_constant(rewriter, f"{name}.scale", product.steps))
    )
    if left is not None:
        epilogue.append(
            (EpilogueStep("bias"), float_constant(rewriter, f"{name}.bias", left * product.steps))
        )
    return epilogue
