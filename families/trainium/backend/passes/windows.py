"""Means over windows as accelerators take them: counted alike, channels on partitions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Graph, Node, TensorInfo, kernel
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.search_space.operators.pool2d import Pool2d, Window
from tilesmith.search_space.workloads.epilogue import EpilogueStep
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

Array = NDArray[np.float32]


@dataclass(frozen=True)
class EvenWindows(Pass):
    """Means over windows count the same number of cells everywhere.

        y = mean(x), fewer cells at the border                before
        y = mean(x with its padding counted) * factor         after, `factor` a constant

        y = mean over rows of images of one channel           before
        y = matmul(band, x)                                   after, `band` a constant matrix

    The first spares a trip to the host. The second is what a local response normalisation sums its
    squares by, its channels being rows: one channel would use one partition, a product uses all.

    Contract: a lowered graph in, the same values out up to roundings; only averaging kernels
    change.
    """

    name = "even-windows"

    def run(self, graph: Graph) -> Graph:
        rewritten = {node: other for node in graph.nodes if (other := _rewritten(node))}
        if not rewritten:
            return graph
        arrays = {name: array for _, name, array in rewritten.values()}
        infos = {name: TensorInfo(name, "float32", a.shape) for name, a in arrays.items()}
        return graph.with_(
            nodes=tuple(rewritten[n][0] if n in rewritten else n for n in graph.nodes),
            constants={**graph.constants, **arrays},
            tensors={**graph.tensors, **infos},
        )


def _rewritten(node: Node) -> tuple[Node, str, Array] | None:
    """The kernel in its place, and its constant's name and value; None if it stays."""
    workload = node.workload
    if workload is None or workload.operator != "pool2d" or workload.text("kind") != "average":
        return None
    template = template_of("pool2d")
    assert isinstance(template, Pool2d)
    if workload.integer("global") or workload.dtype != "float32":
        return None
    windows = template.windows(workload)
    if _over_rows(workload, windows):
        return _product(node, windows[0])
    counted = bool(workload.integer("count_include_pad"))
    if any(window.count_varies(counted) for window in windows):
        return _scaled(node, windows, template.output(workload).shape)
    return None


def _over_rows(workload: Workload, windows: tuple[Window, Window]) -> bool:
    """Whether windows are columns of one image with one channel."""
    across = windows[1]
    column = across.kernel == across.stride == 1 and across.out == across.extent
    return (
        column
        and workload.integer("n") == workload.integer("c") == 1
        and windows[0].extent > 1
        and not workload.epilogue
    )


def shares(window: Window, counted: bool) -> Array:
    """What each cell of a direction adds to each mean, shape (windows, extent)."""
    weights = np.zeros((window.out, window.extent), dtype=np.float32)
    low, high = window.limits(counted)
    for index in range(window.out):
        first = index * window.stride - window.before
        cells = [first + k * window.dilation for k in range(window.kernel)]
        count = sum(low <= cell <= high for cell in cells)
        inside = [cell for cell in cells if 0 <= cell < window.extent]
        weights[index, inside] = np.float32(1.0 / count)
    return weights


def _product(node: Node, window: Window) -> tuple[Node, str, Array]:
    band = shares(window, bool(node.work.integer("count_include_pad")))
    name = f"{node.outputs[0]}.band"
    sizes = {"m": window.out, "n": node.work.integer("w"), "k": window.extent}
    workload = Workload.of("matmul", sizes, constants=("a",))
    return kernel(workload, (name, node.inputs[0]), node.outputs[0], node.name), name, band


def _scaled(
    node: Node, windows: tuple[Window, Window], shape: tuple[int, ...]
) -> tuple[Node, str, Array]:
    """Sums over padded windows divided by their size, then brought to the true count."""
    counted = bool(node.work.integer("count_include_pad"))
    rows, columns = (_excess(window, counted) for window in windows)
    factor = np.broadcast_to(np.outer(rows, columns), shape).astype(np.float32)
    name = f"{node.outputs[0]}.factor"
    pads = [window.before for window in windows] + [reached(window) for window in windows]
    parameters = dict(node.work.parameters)
    parameters |= {"count_include_pad": 1, "ceil": 0, "pad": "x".join(map(str, pads))}
    workload = Workload.of(
        "pool2d", parameters, constants=("multiply0",),
        epilogue=(EpilogueStep("multiply"), *node.work.epilogue),
    )  # fmt: skip
    inputs = (node.inputs[0], name, *node.inputs[1:])
    return kernel(workload, inputs, node.outputs[0], node.name), name, factor


def reached(window: Window) -> int:
    """Padding behind the image that the last window needs, and no more."""
    last = (window.out - 1) * window.stride - window.before + window.reach
    return max(0, last - window.extent)


def _excess(window: Window, counted: bool) -> Array:
    """How many times the cells that a mean counts a whole window has, shape (windows,)."""
    low, high = window.limits(counted)
    first = np.arange(window.out)[:, None] * window.stride - window.before
    cells = first + np.arange(window.kernel)[None] * window.dilation
    count = ((cells >= low) & (cells <= high)).sum(axis=1)
    return np.asarray(window.kernel / count, dtype=np.float32)
