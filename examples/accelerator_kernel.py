"""Write a kernel for Trainium by hand, check it, time it, and ask what other hardware would change.

    python examples/accelerator_kernel.py [page.html]

y = gelu(x + residual) * scale, one row of `scale` for all tokens. No accelerator is needed: the
instruction stream is executed in numpy and played on the timeline of the described hardware.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream
from tilesmith.families.trainium.codegen.isa.text import lines
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.simulator.execution.functional import execute
from tilesmith.families.trainium.simulator.timelines.drawing import draw
from tilesmith.families.trainium.simulator.timelines.timeline import timeline
from tilesmith.search_space.hardware.target import load_target

P, TOKENS, FEATURES = 128, 1024, 768


def fused(core: Core, copies: int) -> InstructionStream:
    """The kernel; `copies` tiles of each tensor are under way at once."""
    kernel = Kernel("fused", core)
    x, residual = (kernel.input(name, (TOKENS, FEATURES)) for name in ("x", "residual"))
    y = kernel.output("y", (TOKENS, FEATURES))
    scale = kernel.sbuf((P, FEATURES), name="scale")
    kernel.load(scale, kernel.input("scale", (FEATURES,)).broadcast(P))
    tiles, others = (kernel.buffers(copies, (P, FEATURES), name=n) for n in ("x", "residual"))
    for start in range(0, TOKENS, P):
        rows = slice(start, start + P)
        tile, other = tiles.next(), others.next()
        kernel.load(tile, x[rows])
        kernel.load(other, residual[rows])
        kernel.tensor_tensor(tile, tile, "add", other)
        kernel.activation(tile, "gelu", tile)
        kernel.tensor_tensor(tile, tile, "multiply", scale)
        kernel.store(y[rows], tile)
    return kernel.finish()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", nargs="?", type=Path, help="an HTML file to write")
    picture = parser.parse_args().picture
    target = load_target("trn1")
    stream = fused(Core.of(target), copies=3)
    print("\n".join(list(lines(stream))[:9]), "\n        ...")

    rng = np.random.default_rng(0)
    shapes = {"x": (TOKENS, FEATURES), "residual": (TOKENS, FEATURES), "scale": (FEATURES,)}
    inputs = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    found = execute(stream, inputs)["y"]
    total = inputs["x"] + inputs["residual"]
    tanh = np.tanh(np.sqrt(2 / np.pi) * (total + 0.044715 * total**3))
    error = np.abs(found - 0.5 * total * (1 + tanh) * inputs["scale"]).max()
    print(f"largest difference from gelu's tanh form: {error:.1e}")

    for copies in (1, 2, 3):
        played = timeline(fused(Core.of(target), copies))
        print(f"{copies} copies of each tile: {played.makespan / 1e3:.1f} us, {played.bound}")
    for setting in ({"dma.engines": "32"}, {"vector.ghz": "2.24"}, {"dma.start_ns": "300"}):
        core = Core.of(target.with_settings(setting))
        print(f"with {setting}: {timeline(stream, core).makespan / 1e3:.1f} us")
    if picture is not None:
        draw(timeline(stream), picture)


if __name__ == "__main__":
    main()
