"""Products of quantised tensors become kernels of whole numbers.

A quantised model multiplies dequantised bytes as floats and quantises the result again. Processors
multiply bytes several times as fast, and the scales can be applied once to each sum: so the whole
group of operators becomes one kernel, where the target has one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import TensorProto

from tilesmith.compiler.graph.access import pads
from tilesmith.compiler.graph.graph import Graph, Node, attributes_of, view
from tilesmith.compiler.lowering.convolution import convolution
from tilesmith.compiler.numerics.integer_products import (
    UNBOUNDED,
    Bounds,
    Doubles,
    Epilogue,
    QuantisedProduct,
    Requantisation,
    float_constant,
    to_bytes,
    to_numbers,
)
from tilesmith.compiler.numerics.quantised import Coding, coding_of, is_dequantise, is_quantise
from tilesmith.compiler.numerics.quantised_products import SUMS, product_of
from tilesmith.compiler.passes.affine import constant_operand, per_channel
from tilesmith.compiler.passes.constant_folding import FoldConstants
from tilesmith.compiler.passes.fallback import has_schedule
from tilesmith.compiler.passes.moved_bytes import MoveBytes, bounds_of
from tilesmith.compiler.passes.quantised_spellings import SpellQuantised
from tilesmith.compiler.passes.unsigned_bytes import UnsignBytes
from tilesmith.compiler.rewriting.graph_pass import Observer, Pass
from tilesmith.compiler.rewriting.lower import make_kernel
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.epilogue import EpilogueStep


@dataclass(frozen=True)
class FoldIntegerProducts(RulePass):
    """Products of quantised tensors become kernels of whole numbers, as far as the target has them.

        y = Quantise(Relu(Conv(Dequantise(x, s, z), DequantizeLinear(w, t), b)), u, v)    before
        y = Kernel(conv2d dtype=uint8 weights=int8
                   epilogue=correction,rescale,quantise_uint8)(x, w, c, r, p)             after

    Bias, bounds and a sum with other bytes join the epilogue; without bytes behind it the kernel
    gives numbers. MatMulInteger and ConvInteger take in the scale that they are multiplied by, also
    one that is known at run time only. What does not fold stays as it is (`unfolded` says why).

    Contract: a graph whose bytes are unsigned (`unsign-bytes`); the sums are exact, and what comes
    of them differs by roundings of single precision.
    """

    name = "fold-integer-products"

    target: Target

    revisits = False

    def visit(self, rewriter: Rewriter, node: Node) -> None:
        fold(rewriter, node, self.target)


def unfolded(graph: Graph) -> dict[str, str]:
    """Why products of quantised tensors are not kernels of whole numbers, by name, in the graph
    that `FoldIntegerProducts` leaves."""
    rewriter = Rewriter(graph)
    reasons = {}
    for node in graph.nodes:
        product = product_of(rewriter, node)
        if product is not None:
            reason = product if isinstance(product, str) else "the target has no kernel for it"
            reasons[node.describe()] = reason
    return reasons


def noting_unfolded(reasons: dict[str, str]) -> Observer:
    """An observer of passes that adds to `reasons` what `unfolded` says."""

    def observe(step: Pass, before: Graph, after: Graph) -> None:
        if isinstance(step, FoldIntegerProducts):
            reasons.update(unfolded(after))

    return observe


@dataclass(frozen=True)
class _Ending:
    """Nodes behind a product that its kernel does too, and its result."""

    nodes: tuple[Node, ...]
    result: str
    epilogue: Epilogue
    before: tuple[Node, ...] = field(default=())


def fold(rewriter: Rewriter, node: Node, target: Target) -> bool:
    """Put a kernel in the place of a product, if there is one."""
    product = product_of(rewriter, node)
    if product is None or isinstance(product, str):
        return False
    ending = _scaled(rewriter, product) if node.is_onnx(*SUMS) else _requantised(rewriter, product)
    try:
        kernels = _kernels(rewriter, product, ending)
    except WorkloadError:
        return False
    if kernels is None or not all(
        n.workload is None or has_schedule(n.workload, target) for n in kernels
    ):
        return False
    rewriter.replace((node, *ending.nodes), *ending.before, *kernels)
    return True


# -- what follows, of known scales ----------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class _Chain:
    """What follows some numbers up to the bytes that they become (coding None: they do not)."""

    nodes: tuple[Node, ...]
    result: str
    bias: Doubles
    residual: tuple[str, Coding] | None = None
    bounds: Bounds = UNBOUNDED
    coding: Coding | None = None


def _requantised(rewriter: Rewriter, product: QuantisedProduct) -> _Ending:
    """A product of dequantised tensors up to the bytes it becomes, else its numbers."""
    chain = _followed(rewriter, product, product.node.writes[0], product.bias)
    if chain.coding is None:
        return _Ending((), product.node.writes[0], to_numbers(rewriter, product))
    after = Requantisation(chain.coding, chain.bias, chain.residual, chain.bounds)
    numbers = rewriter.only_consumer(chain.result)
    read = None if numbers is None or not is_dequantise(numbers) else coding_of(rewriter, numbers)
    if chain.residual is None and numbers is not None and read == chain.coding:
        none = np.zeros_like(product.bias)
        more = _followed(rewriter, product, numbers.writes[0], none)
        if more.coding is not None and not np.any(more.bias):
            after = Requantisation(
                more.coding, chain.bias, more.residual, more.bounds, chain.coding, chain.bounds
            )
            nodes = (*chain.nodes, numbers, *more.nodes)
            return _Ending(nodes, more.result, to_bytes(rewriter, product, after))
    return _Ending(chain.nodes, chain.result, to_bytes(rewriter, product, after))


def _followed(rewriter: Rewriter, product: QuantisedProduct, name: str, bias: Doubles) -> _Chain:
    nodes: list[Node] = []
    bounds = UNBOUNDED
    residual: tuple[str, Coding] | None = None
    while (node := rewriter.only_consumer(name)) is not None and not rewriter.captured(name):
        if is_quantise(node):
            coding = coding_of(rewriter, node)
            return _Chain((*nodes, node), node.writes[0], bias, residual, bounds, coding)
        if node.is_onnx("Relu", "Clip"):
            clipped = bounds_of(rewriter, node)
            if clipped is None or bounds != UNBOUNDED:
                break
            bounds = clipped
        elif _adds_two(node) and bounds == UNBOUNDED and residual is None:
            shift = _shift(rewriter, node, product)
            residual = None if shift is not None else _residual(rewriter, node, name)
            if shift is None and residual is None:
                break
            bias = bias if shift is None else bias + shift
        else:
            break
        nodes.append(node)
        name = node.writes[0]
    return _Chain(tuple(nodes), name, bias)


def _adds_two(node: Node) -> bool:
    return node.is_onnx("Add", "Sum") and len(node.inputs) == 2


def _shift(rewriter: Rewriter, node: Node, product: QuantisedProduct) -> Doubles | None:
    """The constant that a sum adds to each channel, in the product's steps."""
    split = constant_operand(rewriter, node)
    if split is None:
        return None
    shape = rewriter.info(node.writes[0]).dims
    value = per_channel(split[1], shape, 1 if product.convolution else len(shape) - 1)
    return None if value is None else value / product.steps


def _residual(rewriter: Rewriter, node: Node, name: str) -> tuple[str, Coding] | None:
    """The bytes that a sum adds, if these have the result's shape."""
    other = node.inputs[1] if node.inputs[0] == name else node.inputs[0]
    before = rewriter.producer(other)
    if before is None or not is_dequantise(before) or other == name:
        return None
    coding = coding_of(rewriter, before)
    same = rewriter.info(other).dims == rewriter.info(node.writes[0]).dims
    return (before.inputs[0], coding) if same and coding.dtype == "uint8" else None


# -- what follows, of scales known at run time ----------------------------------------------------
def _scaled(rewriter: Rewriter, product: QuantisedProduct) -> _Ending:
    """Sums, and the scale that makes numbers of them if there is one."""
    before: list[Node] = []
    correction = _correction(rewriter, product, before)
    epilogue: Epilogue = [(EpilogueStep("correction"), correction)]
    result = product.node.writes[0]
    cast = rewriter.only_consumer(result)
    if cast is None or not cast.is_onnx("Cast") or cast.attribute("to") != TensorProto.FLOAT:
        return _Ending((), result, epilogue, tuple(before))
    scale = rewriter.only_consumer(cast.writes[0])
    factors = None
    if scale is not None and scale.is_onnx("Mul") and not rewriter.captured(cast.writes[0]):
        factors = _factors(rewriter, scale, cast.writes[0], product, before)
    if scale is None or factors is None:
        return _Ending((), result, epilogue, tuple(before))
    epilogue.append((EpilogueStep("rescale"), factors))
    return _Ending((cast, scale), scale.writes[0], epilogue, tuple(before))


def _correction(rewriter: Rewriter, product: QuantisedProduct, before: list[Node]) -> str:
    """What takes the zero point's part out of the sums, for each channel."""
    sums, name = -product.weight_sums, product.node.writes[0]
    if isinstance(product.zero, int):
        whole = (product.zero * sums).astype(np.int32)
        return rewriter.add_constant(f"{name}.correction", whole, "int32")
    each = rewriter.add_constant(f"{name}.sums", sums.astype(np.int32), "int32")
    number = rewriter.add_tensor(product.zero, "int32", ())
    wide = rewriter.add_tensor(product.zero, "int32", rewriter.info(product.zero).dims)
    result = rewriter.add_tensor(f"{name}.correction", "int32", sums.shape)
    stated = attributes_of(to=int(TensorProto.INT32))
    before += [
        Node("Cast", (product.zero,), (wide,), wide, attributes=stated),
        view(wide, number),
        Node("Mul", (number, each), (result,), result),
    ]
    return result


def _factors(
    rewriter: Rewriter, node: Node, sums: str, product: QuantisedProduct, before: list[Node]
) -> str | None:
    """The scale of each channel by which a Mul multiplies the sums."""
    scale = node.inputs[1] if node.inputs[0] == sums else node.inputs[0]
    info, result = rewriter.info(scale), rewriter.info(node.writes[0])
    count = product.steps.size
    if scale == sums or not info.known or info.dtype != "float32":
        return None
    if result.dims != rewriter.info(sums).dims:
        return None
    axis = 1 if product.convolution else len(result.dims) - 1
    padded = (1,) * (len(result.dims) - len(info.dims)) + info.dims
    if info.elements not in (1, count) or (info.elements == count and padded[axis] != count):
        return None
    value = rewriter.constant(scale)
    if value is not None:
        factors = np.broadcast_to(value.reshape(-1), (count,))
        return float_constant(rewriter, f"{node.writes[0]}.scale", factors)
    ones = float_constant(rewriter, f"{node.writes[0]}.ones", np.ones(count))
    flat = rewriter.add_tensor(scale, "float32", (info.elements,))
    scales = rewriter.add_tensor(f"{node.writes[0]}.scale", "float32", (count,))
    before += [view(scale, flat), Node("Mul", (flat, ones), (scales,), scales)]
    return scales


# -- kernels --------------------------------------------------------------------------------------
def _kernels(
    rewriter: Rewriter, product: QuantisedProduct, ending: _Ending
) -> Sequence[Node] | None:
    if product.convolution:
        return _convolution(rewriter, product, ending)
    node, source = product.node, product.source
    before: list[Node] = []
    if node.attribute("transA", 0):
        rows = rewriter.info(source).dims[::-1]
        turned = rewriter.add_tensor(source, "uint8", rows)
        stated = attributes_of(perm=(1, 0))
        before.append(Node("Transpose", (source,), (turned,), turned, attributes=stated))
        source = turned
    dims = rewriter.info(source).dims
    depth, columns = product.weights.values.shape
    if dims[-1] != depth:
        return None
    kernel = make_kernel(
        rewriter, node, "matmul", (source, _weights(rewriter, product)),
        output=ending.result, names=("", "b"), epilogue=ending.epilogue,
        m=math.prod(dims[:-1]), n=columns, k=depth, weights="int8",
    )  # fmt: skip
    return [*before, kernel]


def _weights(rewriter: Rewriter, product: QuantisedProduct) -> str:
    name = f"{product.node.writes[0]}.weights"
    return rewriter.add_constant(name, product.weights.values, "int8")


def _sides(rewriter: Rewriter, product: QuantisedProduct) -> tuple[tuple[int, int], ...]:
    extents = rewriter.info(product.source).dims[2:]
    return pads(product.node, extents, product.weights.values.shape[2:])


def _convolution(rewriter: Rewriter, product: QuantisedProduct, ending: _Ending) -> Sequence[Node]:
    before: list[Node] = []
    operands = [product.source, _weights(rewriter, product)]
    if any(map(any, _sides(rewriter, product))):
        operands.append(_frame(rewriter, product, before))
    node = replace(product.node, outputs=(ending.result,))
    return [*before, *convolution(rewriter, node, operands, ending.epilogue, weights="int8")]


def _frame(rewriter: Rewriter, product: QuantisedProduct, before: list[Node]) -> str:
    """What is put around an image: the byte that stands for 0."""
    if isinstance(product.zero, int):
        byte = np.array([product.zero], np.uint8)
        return rewriter.add_constant(f"{product.node.writes[0]}.frame", byte, "uint8")
    frame = rewriter.add_tensor(product.zero, "uint8", (1,))
    before.append(view(product.zero, frame))
    return frame


def integer_products(target: Target) -> tuple[Pass, ...]:
    """The passes of families that multiply bytes, by which quantised products become their kernels,
    in their order, before constants are folded (`PassPipeline.before_folding`)."""
    return (
        FoldConstants(leaving="DequantizeLinear"),
        SpellQuantised(),
        MoveBytes(),
        UnsignBytes(),
        FoldIntegerProducts(target),
    )
