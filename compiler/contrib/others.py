"""Operators of com.microsoft that ONNX has today, and distances between rows.

    CDist(a, b)        distances of each row of a from each of b: `metric` "sqeuclidean" (squares of
                       them) or "euclidean"
    ExpandDims(x, axis)    Unsqueeze, axis being a constant
    Inverse(x)         of the matrices along the last two axes, on the host
    GatherND, Pad, Range, Trilu    as in ONNX

Source: ONNX Runtime, docs/ContribOperators.md.
"""

from tilesmith.compiler.rewriting.expansion import Expansion, operator


@operator("com.microsoft.CDist", 2, 2, metric="sqeuclidean")
def cdist(e: Expansion) -> str:
    """|a|^2 + |b|^2 - 2 a b, which rounding may make less than 0."""
    a, b, metric = e.input(0), e.input(1), e.attribute("metric")
    if metric not in ("euclidean", "sqeuclidean"):
        raise e.wrong(f"attribute 'metric' is '{metric}'; euclidean and sqeuclidean are understood")
    own, other = (e.sum(e.apply("Mul", x, x), 1) for x in (a, b))
    product = e.apply("MatMul", a, e.transpose(b, 1, 0))
    both = e.apply("Add", own, e.transpose(other, 1, 0))
    squares = e.apply("Sub", both, e.apply("Mul", product, e.number(2.0, product)))
    squares = e.apply("Relu", squares)
    return e.apply("Sqrt", squares) if metric == "euclidean" else squares


@operator("com.microsoft.Inverse", 1, 1)
def inverse(e: Expansion) -> str:
    dims = e.dims(e.input(0))
    if len(dims) < 2 or dims[-1] != dims[-2]:
        raise e.wrong("its input holds no square matrices")
    return e.newest("Inverse", e.input(0))


@operator("com.microsoft.ExpandDims", 2, 2)
def expand_dims(e: Expansion) -> str:
    axis = int(e.constant_input(1).reshape(-1)[0])
    return e.unsqueeze(e.input(0), axis % (e.rank(e.input(0)) + 1))


@operator("com.microsoft.GatherND", 2, 2)
def gather_nd(e: Expansion) -> str:
    return e.since(11, "GatherND", e.input(0), e.cast(e.input(1), "int64"))


@operator("com.microsoft.Pad", 2, 3, mode="constant")
def pad(e: Expansion) -> str:
    return e.since(11, "Pad", *e.node.inputs, mode=e.attribute("mode"))


@operator("com.microsoft.Range", 2, 3)
def numbers(e: Expansion) -> str:
    step = e.input(2) or e.number(1, e.input(0))
    scalars = [e.reshape(name) for name in (e.input(0), e.input(1), step)]
    return e.since(11, "Range", *scalars)


@operator("com.microsoft.Trilu", 1, 2, upper=1)
def trilu(e: Expansion) -> str:
    return e.since(14, "Trilu", *e.node.inputs, upper=e.attribute("upper"))
