"""Products: axes of the output are kept, axes that both operands share and it lacks are summed."""

from tilesmith.capabilities.sharding.layouts.dimension_maps import (
    DimensionMap,
    Factors,
    Maker,
    rules,
)


@rules.register("MatMul")
def matmul(maker: Maker) -> DimensionMap | None:
    """x[.. m k], y[.. k n] -> [.. m n], the axes before broadcast; vectors lack m or n."""
    x, y, out = maker.dims(0), maker.dims(1), maker.out()
    inner = maker.dimension(x[-1], "summed")
    rows = (maker.dimension(x[-2]),) if len(x) > 1 else ()
    columns = (maker.dimension(y[-1]),) if len(y) > 1 else ()
    batch = out[: len(out) - len(rows) - len(columns)]
    outer = maker.dimensions(batch)
    first = maker.broadcast(outer, x[:-2], batch)
    second = maker.broadcast(outer, y[:-2], batch)
    inputs = ((*first, *rows, inner), (*second, inner, *columns))
    return maker.map(inputs, ((*outer, *rows, *columns),), linear=((0,), (1,)))


@rules.register("Gemm")
def gemm(maker: Maker) -> DimensionMap | None:
    """alpha x[m k] y[k n] + beta c, either operand turned; c is broadcast, and added once."""
    node, (m, n) = maker.node, maker.out()
    x, y = maker.dims(0), maker.dims(1)
    turned = [bool(node.attribute(name, 0)) for name in ("transA", "transB")]
    rows, columns = maker.dimension(m), maker.dimension(n)
    inner = maker.dimension(x[0] if turned[0] else x[1], "summed")
    first = (inner, rows) if turned[0] else (rows, inner)
    second = (columns, inner) if turned[1] else (inner, columns)
    assert y[0 if not turned[1] else 1] == x[0 if turned[0] else 1]
    if not node.input(2):
        given = (first, second, None)[: len(node.inputs)]
        return maker.map(given, ((rows, columns),), linear=((0,), (1,)))
    added = maker.broadcast((rows, columns), maker.dims(2), (m, n))
    return maker.map(
        (first, second, added), ((rows, columns),),
        addends=frozenset({2}), linear=((0, 2), (1, 2)),
    )  # fmt: skip


@rules.register("Einsum")
def einsum(maker: Maker) -> DimensionMap | None:
    """As the equation says; ellipses and letters named twice in a term are left whole."""
    equation = str(maker.node.attribute("equation", "")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        letters = sorted(set(left) - {","})
        right = "".join(letter for letter in letters if left.count(letter) == 1)
    known = all(len(set(t)) == len(t) and "." not in t for t in (*terms, right))
    if not known or len(terms) != len(maker.node.inputs):
        return None
    factors: dict[str, Factors] = {}
    for number, term in enumerate(terms):
        for letter, size in zip(term, maker.dims(number), strict=True):
            if size > 1 and not factors.get(letter):
                factors[letter] = maker.dimension(size, "kept" if letter in right else "summed")
    inputs = []
    for number, term in enumerate(terms):
        sizes = maker.dims(number)
        inputs.append(tuple(factors[x] if n > 1 else () for x, n in zip(term, sizes, strict=True)))
    output = tuple(factors.get(letter, ()) for letter in right)
    # A letter that an operand has one long where another has it longer is stretched: still kept.
    return maker.map(inputs, (output,), linear=tuple((n,) for n in range(len(terms))))
