"""The fused Mamba kernel in the three versions of AWS's tutorial, with scan instructions.

    python benchmarks/accelerator/mamba.py

For each channel tile and state i:  out += scan(exp(delta * A[:, i]), delta * u * B[i]) * C[i]

v1 has the states outside: delta and u are loaded, and multiplied, again for each. v2 has the
channels outside, so they stay in SBUF over the states; where the sequence is so long that its tiles
exceed SBUF, what is kept over the states is spilled and reloaded for each. v3 cuts the sequence
into pieces that fit, the scan's state handed on from piece to piece.

Rows of B and C are one partition in HBM and spread over all by the tensor engine (a product with
ones), as the tutorial has it. The spread row stays in PSUM, where a product with it takes half the
time; one longer than a bank is copied to SBUF.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Space
from tilesmith.families.trainium.codegen.isa.memory import HbmView, Tile
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.simulator.timelines.timeline import timeline
from tilesmith.search_space.hardware.target import load_target

P = 128
BANK = 512
STATES = 16
PUBLISHED = {
    ("v1", 256, 512): 0.173, ("v1", 4096, 512): 2.34, ("v2", 4096, 512): 1.61,
    ("v2", 4096, 1024): 4.4, ("v2", 4096, 4096): 17.6, ("v2", 4096, 8192): 52.2,
    ("v3", 4096, 1024): 3.3, ("v3", 4096, 4096): 13.3, ("v3", 4096, 8192): 27.8,
}  # fmt: skip
"""ms on trn1 by version, channels and sequence length (the tutorial's text and its table)."""


class State(NamedTuple):
    """Tiles of one state: the output so far, exp(delta A), delta, A's column, delta u, the state
    itself, and its rows of B and C."""

    total: Tile
    decay: Tile
    delta: Tile
    column: Tile
    product: Tile
    state: Tile
    b: Tile
    c: Tile


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
        self.ones = kernel.sbuf((1, P), name="ones")
        kernel.memset(self.ones, 1.0)
        self.loaded = kernel.buffers(4, (1, min(length, BANK)), name="row")
        self.places = kernel.buffers(4, (P, BANK), name="spread", space=Space.PSUM)

    def rows(self, view: HbmView, tile: int) -> HbmView:
        return view[tile * P : (tile + 1) * P]

    def spread(self, view: HbmView, state: int, start: int, stop: int) -> Tile:
        """Part of a row of B or C, a bank at most, in all partitions of PSUM."""
        width = stop - start
        row, place = self.loaded.next()[:, :width], self.places.next()[:, :width]
        self.kernel.load(row, view[state : state + 1, start:stop])
        self.kernel.matmul(place, self.ones, row)
        return place

    def spread_long(self, out: Tile, view: HbmView, state: int) -> None:
        """A whole row of B or C in all partitions of SBUF."""
        for start in range(0, self.length, BANK):
            part = slice(start, min(start + BANK, self.length))
            place = self.spread(view, state, part.start, part.stop)
            self.kernel.copy(out[:, part], place, engine="scalar")

    def step(self, tiles: State, first: bool, initial: float | Tile = 0.0) -> None:
        """One state: decay, input, scan, and its share of the output (in the state's place)."""
        kernel = self.kernel
        total, decay, delta, column, product, state, b, c = tiles
        kernel.activation(decay, "exp", delta, scale=column)
        kernel.tensor_tensor(state, product, "multiply", b)
        kernel.scan(state, decay, "multiply", state, "add", initial)
        if isinstance(initial, Tile):
            kernel.copy(initial, state[:, state.shape[1] - 1 :], engine="scalar")
        if first:
            kernel.tensor_tensor(total, state, "multiply", c)
        else:
            kernel.tensor_tensor(state, state, "multiply", c)
            kernel.tensor_tensor(total, total, "add", state)


def v1(core: Core, channels: int, length: int, states: int = STATES) -> InstructionStream:
    """States outside, channels inside; partial outputs of every channel stay in SBUF."""
    m = Mamba(core, "v1", channels, length, states)
    kernel, wide = m.kernel, (P, length)
    tiles = channels // P
    totals = [kernel.sbuf(wide, name=f"total{t}") for t in range(tiles)]
    loads = {name: kernel.buffers(2, wide, name=name) for name in ("delta", "u")}
    columns = kernel.buffers(2, (P, states), name="A")
    decay, product, state = (kernel.buffers(1, wide, name=n) for n in ("decay", "product", "h"))
    for i in range(states):
        for t in range(tiles):
            delta, u, column = loads["delta"].next(), loads["u"].next(), columns.next()
            kernel.load(delta, m.rows(m.delta, t))
            kernel.load(u, m.rows(m.u, t))
            kernel.load(column, m.rows(m.a, t))
            made = product.next()
            kernel.tensor_tensor(made, delta, "multiply", u)
            b, c = (m.spread(view, i, 0, length) for view in (m.b, m.c))
            here = column[:, i : i + 1]
            m.step(State(totals[t], decay.next(), delta, here, made, state.next(), b, c), i == 0)
    for t in range(tiles):
        kernel.store(m.rows(m.out, t), totals[t])
    return kernel.finish()


def v2(core: Core, channels: int, length: int, states: int = STATES) -> InstructionStream:
    """Channels outside; what does not fit SBUF over the states is spilled."""
    if core.sbuf_bytes < 8 * length * 4:
        return _v2_spilled(core, channels, length, states)
    m = Mamba(core, "v2", channels, length, states)
    kernel, wide = m.kernel, (P, length)
    kept = {n: kernel.buffers(2, wide, name=n) for n in ("delta", "product", "total")}
    decay, state = (kernel.buffers(1, wide, name=n) for n in ("decay", "h"))
    columns = kernel.buffers(2, (P, states), name="A")
    copies = 2 if core.sbuf_bytes > 14 * length * 4 else 1
    long = [kernel.buffers(copies, wide, name=n) for n in ("B", "C")] if length > BANK else []
    for t in range(channels // P):
        delta, made, total = (kept[n].next() for n in ("delta", "product", "total"))
        column = columns.next()
        kernel.load(delta, m.rows(m.delta, t))
        kernel.load(made, m.rows(m.u, t))
        kernel.load(column, m.rows(m.a, t))
        kernel.tensor_tensor(made, delta, "multiply", made)
        for i in range(states):
            if long:
                b, c = (places.next() for places in long)
                m.spread_long(b, m.b, i)
                m.spread_long(c, m.c, i)
            else:
                b, c = (m.spread(view, i, 0, length) for view in (m.b, m.c))
            here = column[:, i : i + 1]
            m.step(State(total, decay.next(), delta, here, made, state.next(), b, c), i == 0)
        kernel.store(m.rows(m.out, t), total)
    return kernel.finish()


def _v2_spilled(core: Core, channels: int, length: int, states: int) -> InstructionStream:
    """v2 with its product and partial output spilled, and delta reloaded, for each state."""
    m = Mamba(core, "v2", channels, length, states)
    kernel, wide = m.kernel, (P, length)
    names = ("delta", "product", "total", "bc", "h")
    places = {name: kernel.buffers(1, wide, name=name) for name in names}
    columns = kernel.buffers(2, (P, states), name="A")
    saved = {name: kernel.temporary(f"saved_{name}", (P, length)) for name in ("product", "total")}
    for t in range(channels // P):
        column = columns.next()
        kernel.load(column, m.rows(m.a, t))
        for i in range(states):
            delta, made, total, b, h = (places[name].next() for name in names)
            kernel.load(delta, m.rows(m.delta, t))
            if i:
                kernel.load(made, saved["product"])
                kernel.load(total, saved["total"])
            else:
                kernel.load(made, m.rows(m.u, t))
                kernel.tensor_tensor(made, delta, "multiply", made)
                kernel.store(saved["product"], made)
            m.spread_long(b, m.b, i)
            kernel.activation(delta, "exp", delta, scale=column[:, i : i + 1])
            kernel.tensor_tensor(h, made, "multiply", b)
            kernel.scan(h, delta, "multiply", h, "add")
            c = places["bc"].next()
            m.spread_long(c, m.c, i)
            if i == 0:
                kernel.tensor_tensor(total, h, "multiply", c)
            else:
                kernel.tensor_tensor(h, h, "multiply", c)
                kernel.tensor_tensor(total, total, "add", h)
            kernel.store(saved["total"] if i < states - 1 else m.rows(m.out, t), total)
    return kernel.finish()


def v3(
    core: Core, channels: int, length: int, states: int = STATES, piece: int = 512
) -> InstructionStream:
    """As v2, the sequence cut into pieces within each state; a scan's last column starts the
    next.
    """
    m = Mamba(core, "v3", channels, length, states)
    kernel = m.kernel
    kept = {n: kernel.sbuf((P, length), name=n) for n in ("delta", "u", "total")}
    delta, made, total = kept.values()
    decay, state = (kernel.buffers(1, (P, piece), name=n) for n in ("decay", "h"))
    columns, last = kernel.sbuf((P, states), name="A"), kernel.sbuf((P, 1), name="last")
    for t in range(channels // P):
        kernel.load(columns, m.rows(m.a, t))
        for start in range(0, length, piece):
            part = slice(start, start + piece)
            kernel.load(delta[:, part], m.rows(m.delta, t)[:, part])
            kernel.load(made[:, part], m.rows(m.u, t)[:, part])
            kernel.tensor_tensor(made[:, part], delta[:, part], "multiply", made[:, part])
        for i in range(states):
            kernel.memset(last, 0.0)
            for start in range(0, length, piece):
                part = slice(start, start + piece)
                b, c = (m.spread(view, i, start, start + piece) for view in (m.b, m.c))
                state_of_piece = State(
                    total[:, part], decay.next(), delta[:, part], columns[:, i : i + 1],
                    made[:, part], state.next(), b, c,
                )  # fmt: skip
                m.step(state_of_piece, i == 0, last)
        kernel.store(m.rows(m.out, t), total)
    return kernel.finish()


VERSIONS = {"v1": v1, "v2": v2, "v3": v3}


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    core = Core.of(load_target("trn1"))
    errors = []
    for (version, channels, length), published in PUBLISHED.items():
        played = timeline(VERSIONS[version](core, channels, length), schedule=True)
        latency = played.makespan / 1e6
        print(
            f"{version} of {channels} at {length}: published {published} ms, simulated "
            f"{latency:.2f} ms ({latency / published:.2f}), bound by {played.bound}, "
            f"{played.costs.total_bytes / 1e6:.0f} MB moved, "
            f"vector active {played.engines['vector']:.1%}",
            flush=True,
        )
        errors.append(abs(latency / published - 1))
    print(f"mean error {sum(errors) / len(errors):.1%}")


if __name__ == "__main__":
    main()
