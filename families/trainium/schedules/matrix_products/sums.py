"""What sums in PSUM begin with, on Trainium-like cores: a bias, a residual.

An epilogue that adds a tensor reads sums out of PSUM, adds, and hands on what it got: a pass of the
vector engine between the last product and whoever waits for the result. Instead the tensor can be
in PSUM before the products are, which add to it; it gets there as a product itself:

    a bias along columns:   seed[i, j] = sum_z ones[z, i] bias[z, j], z of one element
    a residual:             seed[i, j] = sum_u unit[u, i] residual[u, j], unit a diagonal of ones

Products in bf16 are exact here, for one factor is 1, and sums are fp32. A bias is loaded as one
row, not once for each partition. Each costs one more pass of the tensor engine for a tile of sums.
"""

from dataclasses import replace

from tilesmith.search_space.expressions.expression import const
from tilesmith.search_space.expressions.scalar import Call, Const, Load, Scalar, Select, call
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, axis
from tilesmith.search_space.workloads.epilogue import operand_name
from tilesmith.search_space.workloads.workload import Workload

ADDED = ("bias", "residual")
"""Steps that add a tensor."""


def leading(workload: Workload, step: str) -> str | None:
    """The operand of the first `step` of an epilogue that only additions come before; None without
    one."""
    for position, applied in enumerate(workload.epilogue):
        if applied.name == step:
            return operand_name(applied, position)
        if applied.name not in ADDED:
            return None
    return None


def with_bias(compute: ComputeDefinition, workload: Workload, rows: int) -> ComputeDefinition:
    """A product `c` whose sums begin with the bias along its columns.

    Args:
        rows: of a tile of c.
    """
    name = leading(workload, "bias")
    assert name is not None
    c = compute.stage("c")
    i, j = c.axes
    z, u = axis("z", 1), axis("u", min(rows, workload.integer("m")))
    one = Load("ones", (z.var, i.var % rows if workload.integer("m") > rows else i.var))
    product = call("multiply", one, Load("bias.strip", (z.var, j.var)))
    dtype = workload.dtype
    seeds = (
        Stage("ones", (z, u), Const(1.0), dtype=dtype),
        Stage("bias.strip", (z, j), Load(name, (j.var,)), dtype=dtype),
        Stage("seed", c.axes, product, (z,), "sum"),
    )
    return _begun(compute, "c", seeds, name)


def with_residual(
    compute: ComputeDefinition, workload: Workload, sums: str, axis_at: int, size: int
) -> ComputeDefinition:
    """A stage of `sums` that begin with the residual.

    Args:
        axis_at: the axis of sums that is on partitions, in whole blocks of `size` (or all of it).
    """
    name = leading(workload, "residual")
    assert name is not None
    stage = compute.stage(sums)
    on = stage.axes[axis_at]
    whole = on.extent.constant
    assert whole is not None
    size = min(size, whole)
    assert whole % size == 0
    u, row, column = axis("u", size), axis("ui", size), axis("uj", size)
    first, place = (on.var // size * size, on.var % size) if whole > size else (const(0), on.var)
    diagonal = (row.var - column.var, column.var - row.var)
    element = tuple(first + u.var if a is on else a.var for a in stage.axes)
    product = call("multiply", Load(name, element), Load("unit", (u.var, place)))
    unit = Select(diagonal, Const(1.0), Const(0.0))
    seeds = (
        Stage("unit", (row, column), unit, dtype=workload.dtype),
        Stage("seed", stage.axes, product, (u,), "sum"),
    )
    return _begun(compute, sums, seeds, name)


def _begun(
    compute: ComputeDefinition, sums: str, seeds: tuple[Stage, ...], addend: str
) -> ComputeDefinition:
    """`seeds`, the last of which `sums` go on from; `addend` is not added any more."""
    stages: list[Stage] = []
    for stage in compute.stages:
        if stage.name == sums:
            stages += [*seeds, replace(stage, onto=seeds[-1].name)]
        else:
            stages.append(replace(stage, value=_without(stage.value, addend)))
    return replace(compute, stages=tuple(stages))


def _without(value: Scalar, addend: str) -> Scalar:
    """A value in which a tensor is not added."""
    match value:
        case Call("add", (rest, Load(name))) if name == addend:
            return _without(rest, addend)
        case Call(function, arguments):
            return Call(function, tuple(_without(argument, addend) for argument in arguments))
        case _:
            return value
