"""The fused Mamba kernel in the three versions of AWS's tutorial, with scan instructions.

    python benchmarks/accelerator/mamba.py

For each channel tile and state i:  out += scan(exp(delta * A[:, i]), delta * u * B[i]) * C[i]

v1 has the states outside: delta and u are loaded, and multiplied, again for each. v2 has the
    channels
outside, so they stay in SBUF over the states; where the sequence is so long that its tiles exceed
SBUF, what is kept over the states is spilled and reloaded for each. v3 cuts the sequence into
pieces that fit, the scan's state handed on from piece to piece.
"""

from __future__ import annotations

from codegen.accelerator.builder import Kernel
from codegen.accelerator.core import Core
from codegen.accelerator.instructions import InstructionStream
from codegen.accelerator.memory import HbmView, Tile
from search_space.target import load_target
from simulator.accelerator.timeline import timeline

P = 128
STATES = 16
PUBLISHED = {("v1", 512): 2.34, ("v2", 512): 1.61, ("v2", 8192): 52.2, ("v3", 8192): 27.8}
"""ms on trn1, 4096 channels, by version and sequence length."""


class Mamba:
    """Tensors and the steps that the versions share."""

    def __init__(self, core: Core, name: str, channels: int, length: int, states: int) -> None:
        self.kernel = kernel = Kernel(f"mamba_{name}", core)
        self.channels, self.length, self.states = channels, length, states
        self.delta = kernel.input("delta", (channels, length))
        self.u = kernel.input("u", (channels, length))
        self.a = kernel.input("A", (channels, states))
        self.b = kernel.input("B", (states, length))
        self.c = kernel.input("C", (states, length))
        self.out = kernel.output("out", (channels, length))

    def step(
        self, total: Tile, first: bool, decay: Tile, delta: Tile, column: Tile, product: Tile,
        b: Tile, c: Tile, state: Tile, initial: float | Tile = 0.0,
    ) -> None:  # fmt: skip
        """One state: decay, input, scan, and its share of the output."""
        kernel = self.kernel
        kernel.activation(decay, "exp", delta, scale=column)
        kernel.tensor_tensor(state, product, "multiply", b)
        kernel.scan(state, decay, "multiply", state, "add", initial)
        if first:
            kernel.tensor_tensor(total, state, "multiply", c)
        else:
            kernel.tensor_tensor(decay, state, "multiply", c)
            kernel.tensor_tensor(total, total, "add", decay)

    def rows(self, view: HbmView, tile: int) -> HbmView:
        return view[tile * P : (tile + 1) * P]

    def spread(self, view: HbmView, state: int, start: int, stop: int) -> HbmView:
        """One row of B or C for all partitions."""
        return view[state, start:stop].broadcast(P)


def v1(core: Core, channels: int, length: int, states: int = STATES) -> InstructionStream:
    """States outside, channels inside; partial outputs of every channel stay in SBUF."""
    m = Mamba(core, "v1", channels, length, states)
    kernel, wide = m.kernel, (P, length)
    tiles = channels // P
    totals = [kernel.sbuf(wide, name=f"total{t}") for t in range(tiles)]
    loads = {name: kernel.buffers(2, wide, name=name) for name in ("delta", "u", "b", "c")}
    columns = kernel.buffers(2, (P, states), name="A")
    decay, product, state = (kernel.buffers(1, wide, name=n) for n in ("decay", "product", "h"))
    for i in range(states):
        b, c = loads["b"].next(), loads["c"].next()
        kernel.load(b, m.spread(m.b, i, 0, length))
        kernel.load(c, m.spread(m.c, i, 0, length))
        for t in range(tiles):
            delta, u, column = loads["delta"].next(), loads["u"].next(), columns.next()
            kernel.load(delta, m.rows(m.delta, t))
            kernel.load(u, m.rows(m.u, t))
            kernel.load(column, m.rows(m.a, t))
            made = product.next()
            kernel.tensor_tensor(made, delta, "multiply", u)
            m.step(
                totals[t], i == 0, decay.next(), delta, column[:, i : i + 1], made, b, c,
                state.next(),
            )  # fmt: skip
    for t in range(tiles):
        kernel.store(m.rows(m.out, t), totals[t])
    return kernel.finish()


def v2(core: Core, channels: int, length: int, states: int = STATES) -> InstructionStream:
    """Channels outside; what does not fit SBUF over the states is spilled."""
    m = Mamba(core, "v2", channels, length, states)
    kernel, wide = m.kernel, (P, length)
    room = core.sbuf_bytes // (length * 4)
    spills = room < 8
    copies = 2 if room >= 16 else 1
    kept = {name: kernel.buffers(copies, wide, name=name) for name in ("delta", "total")}
    product = kernel.buffers(copies, wide, name="product")
    vectors = kernel.buffers(copies, wide, name="bc")
    state = kernel.buffers(1, wide, name="h")
    decay = None if spills else kernel.buffers(1, wide, name="decay")
    columns = kernel.buffers(2, (P, states), name="A")
    saved = {name: kernel.temporary(f"saved_{name}", (P, length)) for name in ("product", "total")}
    for t in range(channels // P):
        delta, made, column = kept["delta"].next(), product.next(), columns.next()
        total = kept["total"].next()
        kernel.load(delta, m.rows(m.delta, t))
        kernel.load(made, m.rows(m.u, t))
        kernel.load(column, m.rows(m.a, t))
        kernel.tensor_tensor(made, delta, "multiply", made)
        if spills:
            kernel.store(saved["product"], made)
        for i in range(states):
            if spills and i:
                delta, made, total = (
                    kept["delta"].next(), product.next(), kept["total"].next(),
                )  # fmt: skip
                kernel.load(delta, m.rows(m.delta, t))
                kernel.load(made, saved["product"])
                kernel.load(total, saved["total"])
            b = vectors.next()
            kernel.load(b, m.spread(m.b, i, 0, length))
            h, faded = state.next(), delta if decay is None else decay.next()
            kernel.activation(faded, "exp", delta, scale=column[:, i : i + 1])
            kernel.tensor_tensor(h, made, "multiply", b)
            kernel.scan(h, faded, "multiply", h, "add")
            c = vectors.next()
            kernel.load(c, m.spread(m.c, i, 0, length))
            if i == 0:
                kernel.tensor_tensor(total, h, "multiply", c)
            else:
                kernel.tensor_tensor(h, h, "multiply", c)
                kernel.tensor_tensor(total, total, "add", h)
            if spills:
                kernel.store(saved["total"], total)
        kernel.store(m.rows(m.out, t), total)
    return kernel.finish()


def v3(
    core: Core, channels: int, length: int, states: int = STATES, piece: int = 512
) -> InstructionStream:
    """As v2, on pieces of the sequence; the last column of each scan starts the next."""
    m = Mamba(core, "v3", channels, length, states)
    kernel, wide = m.kernel, (P, piece)
    loads = {n: kernel.buffers(2, wide, name=n) for n in ("delta", "u", "b", "c")}
    totals = kernel.buffers(2, wide, name="total")
    decay, state = kernel.buffers(1, wide, name="decay"), kernel.buffers(2, wide, name="h")
    columns = kernel.buffers(2, (P, states), name="A")
    for t in range(channels // P):
        column = columns.next()
        kernel.load(column, m.rows(m.a, t))
        last = kernel.sbuf((P, states), name="last")
        for start in range(0, length, piece):
            part = slice(start, start + piece)
            delta, u, total = loads["delta"].next(), loads["u"].next(), totals.next()
            kernel.load(delta, m.rows(m.delta, t)[:, part])
            kernel.load(u, m.rows(m.u, t)[:, part])
            kernel.tensor_tensor(u, delta, "multiply", u)
            for i in range(states):
                b, c, h = loads["b"].next(), loads["c"].next(), state.next()
                kernel.load(b, m.spread(m.b, i, part.start, part.stop))
                kernel.load(c, m.spread(m.c, i, part.start, part.stop))
                initial: float | Tile = last[:, i : i + 1] if start else 0.0
                m.step(
                    total, i == 0, decay.next(), delta, column[:, i : i + 1], u, b, c, h, initial
                )
                kernel.copy(last[:, i : i + 1], h[:, piece - 1 : piece], engine="scalar")
            kernel.store(m.rows(m.out, t)[:, part], total)
        kernel.free(last)
    return kernel.finish()


VERSIONS = {"v1": v1, "v2": v2, "v3": v3}


def main() -> None:
    core = Core.of(load_target("trn1"))
    for (version, length), published in PUBLISHED.items():
        played = timeline(VERSIONS[version](core, 4096, length))
        latency = played.makespan / 1e6
        print(
            f"{version} at {length}: published {published} ms, simulated {latency:.2f} ms "
            f"({latency / published:.2f}), bound by {played.bound}, "
            f"{played.costs.total_bytes / 1e6:.0f} MB moved"
        )


if __name__ == "__main__":
    main()
