"""Maps: sums of tensors, gelu, an optimizer's step, rotary position embedding."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream
from tilesmith.families.trainium.codegen.isa.memory import Tile
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from written.common import P, across_heads, blocks, pieces

WIDTH = 2048
"""Columns of a block: rows of 8 KiB, which DMA moves at full rate."""


def tensor_add(core: Core, rows: int, columns: int, dtype: str = "float32") -> InstructionStream:
    """c = a + b."""
    kernel = Kernel("tensor_add", core)
    a, b = (kernel.input(name, (rows, columns), dtype) for name in "ab")
    c = kernel.output("c", (rows, columns), dtype)
    places = {n: kernel.buffers(2, (P, min(WIDTH, columns)), dtype, name=n) for n in "ab"}
    for block in blocks(a, b, c):
        for part in pieces(columns, WIDTH):
            width = part.stop - part.start
            x, y = (places[name].next()[:, :width] for name in "ab")
            kernel.load(x, block[0][:, part])
            kernel.load(y, block[1][:, part])
            kernel.tensor_tensor(x, x, "add", y)
            kernel.store(block[2][:, part], x)
    return kernel.finish()


def gelu(core: Core, rows: int, columns: int, dtype: str = "float32") -> InstructionStream:
    """y = gelu(x), one activation an element."""
    kernel = Kernel("gelu", core)
    x, y = kernel.input("x", (rows, columns), dtype), kernel.output("y", (rows, columns), dtype)
    places = kernel.buffers(3, (P, min(WIDTH, columns)), dtype)
    for source, out in blocks(x, y):
        for part in pieces(columns, WIDTH):
            tile = places.next()[:, : part.stop - part.start]
            kernel.load(tile, source[:, part])
            kernel.activation(tile, "gelu", tile)
            kernel.store(out[:, part], tile)
    return kernel.finish()


@dataclass(frozen=True)
class AdamW:
    """What the optimiser is told; `step` counts from one."""

    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    decay: float = 0.01
    step: int = 10


USUAL = AdamW()


def adamw(core: Core, rows: int, columns: int, told: AdamW = USUAL) -> InstructionStream:
    """One step of AdamW: parameters and both moments are read and written, gradients read."""
    kernel = Kernel("adamw", core)
    names = ("parameter", "m", "v", "gradient")
    inputs = [kernel.input(name, (rows, columns)) for name in names]
    outputs = [kernel.output(f"new_{name}", (rows, columns)) for name in names[:3]]
    width = min(WIDTH // 2, columns)
    places = {name: kernel.buffers(2, (P, width), name=name) for name in (*names, "update")}
    for block in blocks(*inputs, *outputs):
        for part in pieces(columns, width):
            tiles = [places[n].next()[:, : part.stop - part.start] for n in (*names, "update")]
            for tile, view in zip(tiles, block[:4], strict=False):
                kernel.load(tile, view[:, part])
            _adamw_step(kernel, tiles, told)
            for tile, view in zip(tiles, block[4:], strict=False):
                kernel.store(view[:, part], tile)
    return kernel.finish()


def _adamw_step(kernel: Kernel, tiles: list[Tile], told: AdamW) -> None:
    """Both moments and the parameter in place; squares and roots on scalar, the rest on vector."""
    parameter, m, v, gradient, update = tiles
    beta1, beta2, rate = told.beta1, told.beta2, told.rate
    first, second = 1 - beta1**told.step, 1 - beta2**told.step
    kernel.activation(update, "square", gradient, scale=sqrt(1 - beta2))
    kernel.tensor_scalar(m, m, "multiply", beta1)
    kernel.scalar_tensor_tensor(m, gradient, "multiply", 1 - beta1, "add", m)
    kernel.scalar_tensor_tensor(v, v, "multiply", beta2, "add", update)
    kernel.activation(update, "sqrt", v, scale=1 / second)
    kernel.tensor_scalar(update, update, "add", told.epsilon)
    kernel.reciprocal(update, update)
    kernel.scalar_tensor_tensor(update, update, "multiply", -rate / first, "multiply", m)
    kernel.scalar_tensor_tensor(
        parameter, parameter, "multiply", 1 - rate * told.decay, "add", update
    )


def rope(core: Core, tokens: int, heads: int, width: int) -> InstructionStream:
    """Rotary position embedding of x [tokens, heads, width], halves rotated against each other."""
    kernel = Kernel("rope", core)
    half = width // 2
    x, y = (make(n, (tokens, heads, width)) for make, n in (
        (kernel.input, "x"), (kernel.output, "y"),
    ))  # fmt: skip
    tables = [kernel.input(name, (tokens, half)) for name in ("cos", "sin")]
    loaded, stored = (kernel.buffers(2, (P, heads, width), name=n) for n in "xy")
    angles = [kernel.buffers(2, (P, half), name=n) for n in ("cos", "sin")]
    product = kernel.buffers(1, (P, heads, half), name="product")
    for source, cosines, sines, out in blocks(x, *tables, y):
        tile, turned, part = loaded.next(), stored.next(), product.next()
        cos, sin = (place.next() for place in angles)
        for place, view in ((tile, source), (cos, cosines), (sin, sines)):
            kernel.load(place, view)
        cos, sin = across_heads(cos, heads), across_heads(sin, heads)
        low, high = tile[:, :, :half], tile[:, :, half:]
        for result, one, other, op in (
            (turned[:, :, :half], low, high, "subtract"), (turned[:, :, half:], high, low, "add"),
        ):  # fmt: skip
            kernel.tensor_tensor(result, one, "multiply", cos)
            kernel.tensor_tensor(part, other, "multiply", sin)
            kernel.tensor_tensor(result, result, op, part)
        kernel.store(out, turned)
    return kernel.finish()
