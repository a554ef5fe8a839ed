"""Random small kernels for the laws: a few tiles, every engine, data dependences of all kinds."""

from __future__ import annotations

import numpy as np

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Space
from tilesmith.families.trainium.codegen.kernel.builder import Kernel

P, F = 128, 256


def random_kernel(core: Core, seed: int, steps: int) -> InstructionStream:
    """A legal kernel of `steps` random instructions over a few tiles, all of [128, 256]."""
    return unfinished(core, seed, steps).finish()


def unfinished(core: Core, seed: int, steps: int) -> Kernel:
    """The same before semaphores are derived."""
    rng = np.random.default_rng(seed)
    kernel = Kernel(f"random{seed}", core)
    x, y = kernel.input("x", (4 * P, F)), kernel.output("y", (8 * P, F))
    spill = kernel.temporary("spill", (P, F))
    tiles = [kernel.sbuf((P, F), name=f"tile{i}") for i in range(4)]
    sums = [kernel.psum((P, F), name=f"sum{i}") for i in range(2)]
    turned = kernel.buffers(2, (P, P), name="turned", space=Space.PSUM)
    for i, tile in enumerate(tiles):
        kernel.load(tile, x[i * P : (i + 1) * P])
    kernel.store(spill, tiles[0])
    for total in sums:
        kernel.matmul(total, tiles[0][:, :P], tiles[1])
    stored = 0
    for _ in range(steps):
        a, b, out = (tiles[int(i)] for i in rng.integers(0, 4, 3))
        total = sums[int(rng.integers(0, 2))]
        match int(rng.integers(0, 11)):
            case 0:
                kernel.load(out, x[P * int(rng.integers(0, 4)) :][:P])
            case 1:
                kernel.store(y[stored % 8 * P : (stored % 8 + 1) * P], a)
                stored += 1
            case 2:
                kernel.matmul(total, a[:, :P], b, accumulate=bool(rng.integers(0, 2)))
            case 3:
                place = turned.next()
                kernel.transpose(place, a[:, P:])
                kernel.copy(out[:, :P], place, engine=str(rng.choice(["vector", "scalar"])))
            case 4:
                kernel.activation(out, "tanh", a, scale=0.5)
            case 5:
                kernel.tensor_tensor(out, a, "max", b, engine=str(rng.choice(["vector", "gpsimd"])))
            case 6:
                kernel.tensor_scalar(out, total, "multiply", 0.25)
            case 7:
                kernel.copy(out, total, engine=str(rng.choice(["vector", "scalar"])))
            case 8:
                kernel.reduce(out[:, :1], a, "max")
            case 9:
                kernel.load(out, spill)
            case _:
                kernel.store(spill, a)
    for i in range(8):
        kernel.store(y[i * P : (i + 1) * P], tiles[i % 4])
    return kernel
