"""Layer, instance and group normalisation -> `layer_norm`; RMS normalisation -> `rms_norm`.

The normalised axes become one. Instance and group normalisation are layer normalisations of other
rows, followed by a scale and a shift for each channel.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from tilesmith.compiler.graph.graph import Node, view
from tilesmith.compiler.rewriting.lower import Parameters, is_computable, make_kernel, rules
from tilesmith.compiler.rewriting.rewrite import Rewriter


@rules.register("LayerNormalization")
def lower_layer_norm(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    scale, bias = (int(bool(node.input(position))) for position in (1, 2))
    return _rows(rewriter, node, "layer_norm", scale=scale, bias=bias)


@rules.register("RMSNormalization")
def lower_rms_norm(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    return _rows(rewriter, node, "rms_norm", scale=1)


def _rows(rewriter: Rewriter, node: Node, operator: str, **given: int) -> Sequence[Node] | None:
    """The kernel of `operator` with the operands `given`."""
    infos = [rewriter.info(name) for name in node.reads]
    if len(node.writes) != 1 or not all(is_computable(info) for info in infos):
        return None
    dims = infos[0].dims
    axis = int(node.attribute("axis", -1)) % len(dims)
    length = math.prod(dims[axis:])
    if any(info.elements != length for info in infos[1:]):
        return None
    stated: Parameters = {
        "shape": (math.prod(dims[:axis]), length),
        "epsilon": _epsilon(node),
        **given,
    }
    return [make_kernel(rewriter, node, operator, node.reads, **stated)]


def _epsilon(node: Node) -> str:
    """'1e-5', not '1e-05', as people and the template's default write it."""
    mantissa, e, exponent = f"{node.attribute('epsilon', 1e-5):.6g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa


@rules.register("InstanceNormalization")
def lower_instance_norm(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    dims = rewriter.info(node.inputs[0]).dims
    return _channels(rewriter, node, dims[0] * dims[1])


@rules.register("GroupNormalization")
def lower_group_norm(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    dims, groups = rewriter.info(node.inputs[0]).dims, int(node.attribute("num_groups"))
    if rewriter.info(node.inputs[1]).elements == dims[1]:
        return _channels(rewriter, node, dims[0] * groups)
    return _groups(rewriter, node, groups)


def _groups(rewriter: Rewriter, node: Node, groups: int) -> Sequence[Node] | None:
    """Before opset 21 there is one scale a group: an instance normalisation of groups."""
    x, *parameters = node.inputs
    dims = rewriter.info(x).dims
    if any(rewriter.info(name).elements != groups for name in parameters):
        return None
    shape = (dims[0], groups, math.prod(dims[1:]) // groups)
    source = rewriter.add_tensor(x, "float32", shape)
    result = rewriter.add_tensor(node.writes[0], "float32", shape)
    inner = replace(node, inputs=(source, *parameters), outputs=(result,))
    new = _channels(rewriter, inner, dims[0] * groups)
    return new and [view(x, source), *new, view(result, node.writes[0])]


def _channels(rewriter: Rewriter, node: Node, rows: int) -> Sequence[Node] | None:
    """Normalise rows, then scale and shift channels with operators that later passes fuse."""
    x, scale, shift = node.inputs
    infos = [rewriter.info(name) for name in node.inputs]
    if not all(is_computable(info) for info in infos):
        return None
    dims = infos[0].dims
    shape = (rows, infos[0].elements // rows)
    normal = rewriter.add_tensor(node.writes[0], "float32", dims)
    scaled = rewriter.add_tensor(node.writes[0], "float32", dims)
    new = [make_kernel(
        rewriter, node, "layer_norm", (x,), output=normal,
        shape=shape, epsilon=_epsilon(node), scale=0, bias=0,
    )]  # fmt: skip
    spread = []
    for name in (scale, shift):
        wide = rewriter.add_tensor(name, "float32", (dims[1], *(1,) * (len(dims) - 2)))
        new.append(view(name, wide))
        spread.append(wide)
    new.append(Node("Mul", (normal, spread[0]), (scaled,), f"{node.name}.scale"))
    new.append(Node("Add", (scaled, spread[1]), node.outputs, f"{node.name}.shift"))
    return new
