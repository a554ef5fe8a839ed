"""Kernels of images in other layouts than plain: their workloads there.

    elementwise shape=1x64x56x56          NCHW    -->  shape=1x4x56x56x16         NCHW16c
    elementwise shape=64x56x56            NCHW    -->  shape=3136x64              NHWC
    concat shape=1x96x56x56 axis=1        NCHW    -->  shape=56x56x96 axis=2      NHWC
    resize shape=1x96x28x28               NCHW    -->  shape=1x28x28x96           NHWC

so that images stay as convolutions leave them. In blocks of pixels (`NHW2h2wC`) a row has the
channels of several pixels one behind the other, which is all the same to what is elementwise.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.passes.elementwise import elementwise_workload, formula_in, is_elementwise
from tilesmith.compiler.recipe.layouts import PLAIN, block, physical_shape
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload, shape_text

Shape = tuple[int, ...]


def channels_last(graph: Graph, node: Node, layout: str) -> tuple[Workload, tuple[str, ...]] | None:
    """A kernel's workload where its images are in `layout`, and all layouts.

    None where it cannot be said: no images, blocks that do not divide them, an operand that
    broadcasts otherwise than along channels or single pixels, parts that are not channels.
    """
    dims = graph.info(node.writes[0]).dims
    physical = _physical(layout, dims)
    if physical is None:
        return None
    if is_elementwise(node):
        return _elementwise(graph, node, layout, physical)
    if node.workload is not None and node.workload.operator == "resize":
        return _resizing(node.workload, layout)
    return _concatenation(graph, node, layout)


def _physical(layout: str, dims: Shape) -> Shape | None:
    """Pixels or blocks of them, and a row's lanes; None if there is an incomplete block."""
    if len(dims) != 4:
        return None
    parsed = Layout.parse(layout)
    shape = parsed.concrete_shape(dims)
    if math.prod(shape) != math.prod(dims):
        return None
    return (*shape[:3], math.prod(shape[3:]))


def _elementwise(
    graph: Graph, node: Node, layout: str, physical: Shape
) -> tuple[Workload, tuple[str, ...]] | None:
    workload = node.work
    dims = graph.info(node.writes[0]).dims
    shapes: list[Shape] = []
    layouts: list[str] = []
    for name in node.inputs:
        own = graph.info(name).dims
        padded = (1,) * (4 - len(own)) + own
        if own == dims:
            shapes.append(physical)
            layouts.append(layout)
            continue
        if math.prod(padded) == 1:
            shapes.append((1,))
        elif padded == (1, dims[1], 1, 1) and physical[3] == dims[1]:
            shapes.append((dims[1],))
        elif padded[:2] == (1, 1) and physical[3] == dims[1]:
            shapes.append((*padded[2:], 1))
        else:
            return None
        layouts.append(PLAIN)
    return _with_shapes(workload, shapes, physical, rows=True), tuple(layouts)


def _with_shapes(
    workload: Workload, shapes: Sequence[Shape], physical: Shape, *, rows: bool
) -> Workload:
    """An elementwise workload of operands as they lie in memory."""
    operands = template_of(workload.operator).operands(workload)
    dtypes = (workload.dtype, *(operand.dtype for operand in operands))
    changed = elementwise_workload(formula_in(workload), shapes, physical, dtypes, rows=rows)
    return replace(changed, constants=workload.constants)


def _resizing(workload: Workload, layout: str) -> tuple[Workload, tuple[str, ...]] | None:
    """Whole pixels are repeated, so that only single ones lie in a row."""
    parsed, given = Layout.parse(layout), workload.shape("shape")
    sizes = workload.shape("sizes")
    pixels, resized = (parsed.concrete_shape(shape) for shape in (given, sizes))
    if len(given) != 4 or len(pixels) != 4 or given[:2] != sizes[:2] or pixels[3] != given[1]:
        return None
    shapes = {"shape": shape_text(pixels), "sizes": shape_text(resized)}
    parameters = {**dict(workload.parameters), **shapes}
    changed = Workload.of("resize", parameters, dtype=workload.dtype)
    return replace(changed, constants=workload.constants), (layout,)


def _concatenation(
    graph: Graph, node: Node, layout: str
) -> tuple[Workload, tuple[str, ...]] | None:
    workload = node.work
    dims = graph.info(node.writes[0]).dims
    pixels = Layout.parse(layout).concrete_shape(dims)
    if len(pixels) != 4 or workload.integer("axis") != 1 or workload.shape("shape") != dims:
        return None
    parts = "x".join(map(str, workload.shape("parts")))
    parameters: dict[str, int | str] = {"shape": shape_text(pixels), "axis": 3, "parts": parts}
    changed = Workload.of("concat", parameters, dtype=workload.dtype)
    return replace(changed, constants=workload.constants), (layout,) * len(node.inputs)


def blocked_elementwise(
    graph: Graph, node: Node, layout: str
) -> tuple[Workload, tuple[str, ...]] | None:
    """An elementwise kernel's workload where its full operands are in `layout`, and all layouts.

    None where it cannot be said: operands that broadcast otherwise than along whole channels.
    """
    workload = node.work
    dims = graph.info(node.writes[0]).dims
    size = block(layout)
    if len(dims) != 4 or dims[1] % size:
        return None
    shapes: list[tuple[int, ...]] = []
    layouts: list[str] = []
    for name in node.inputs:
        shape = graph.info(name).dims
        padded = (1,) * (4 - len(shape)) + shape
        if padded == dims:
            shapes.append(physical_shape(layout, dims))
            layouts.append(layout)
        elif padded in ((1, dims[1], 1, 1), (dims[0], dims[1], 1, 1)):
            shapes.append((padded[0], dims[1] // size, 1, 1, size))
            layouts.append(PLAIN)
        elif math.prod(padded) == 1:
            shapes.append((1,))
            layouts.append(PLAIN)
        else:
            return None
    physical = physical_shape(layout, dims)
    return _with_shapes(workload, shapes, physical, rows=False), tuple(layouts)
