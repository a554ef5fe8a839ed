"""The matrix product of AWS's kernel optimisation guide, step by step, on trn2: engine activity.

    python benchmarks/accelerator/optimisation_guide.py

out[M, N] = lhsT[K, M].T @ rhs[K, N] in fp32, 4096 x 8192 x 8192. The guide publishes how long DMA,
tensor and vector engine were active in each version, not the latency. Nothing is fitted on it.

    tiled      both tiles are loaded for every product
    hoisted    a column of lhsT tiles is kept over all of N, one of rhs tiles over K
    blocked    blocks of 2048 x 1024 results stay in SBUF, K in parts of 1024 that are added to them

(The guide's version between the last two keeps more tiles than SBUF has room for.) DMA counts as
active while any transfer is under way.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilesmith.families.trainium.codegen.isa.core import FIRST_DMA_QUEUE, Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Space
from tilesmith.families.trainium.codegen.isa.memory import HbmView
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.simulator.timelines.timeline import Timeline, timeline
from tilesmith.search_space.hardware.target import load_target

P, BANK = 128, 512


def start(
    core: Core, name: str, m: int, n: int, k: int
) -> tuple[Kernel, HbmView, HbmView, HbmView]:
    """A kernel and its tensors."""
    kernel = Kernel(name, core)
    return (
        kernel, kernel.input("lhsT", (k, m)), kernel.input("rhs", (k, n)),
        kernel.output("out", (m, n)),
    )  # fmt: skip


def at(view: HbmView, row: int, column: int, width: int) -> HbmView:
    """128 rows of `width` columns: tile number (row, column)."""
    return view[row * P : (row + 1) * P, column * width : (column + 1) * width]


def tiled(core: Core, m: int, n: int, k: int) -> InstructionStream:
    """Both operands are loaded for each product."""
    kernel, lhs, rhs, out = start(core, "tiled", m, n, k)
    left, right = kernel.buffers(4, (P, P)), kernel.buffers(4, (P, BANK))
    sums, results = kernel.buffers(2, (P, BANK), space=Space.PSUM), kernel.buffers(2, (P, BANK))
    for i in range(m // P):
        for j in range(n // BANK):
            total, result = sums.next(), results.next()
            for step in range(k // P):
                a, b = left.next(), right.next()
                kernel.load(a, at(lhs, step, i, P))
                kernel.load(b, at(rhs, step, j, BANK))
                kernel.matmul(total, a, b, accumulate=step > 0)
            kernel.copy(result, total)
            kernel.store(at(out, i, j, BANK), result)
    return kernel.finish()


def hoisted(core: Core, m: int, n: int, k: int) -> InstructionStream:
    """Loads out of the innermost loop: lhsT once for each row of tiles, rhs for each tile."""
    kernel, lhs, rhs, out = start(core, "hoisted", m, n, k)
    depth = k // P
    left = [kernel.buffers(2, (P, P)) for _ in range(depth)]
    right = [kernel.buffers(1, (P, BANK)) for _ in range(depth)]
    sums, results = kernel.buffers(2, (P, BANK), space=Space.PSUM), kernel.buffers(2, (P, BANK))
    for i in range(m // P):
        columns = [place.next() for place in left]
        for step, tile in enumerate(columns):
            kernel.load(tile, at(lhs, step, i, P))
        for j in range(n // BANK):
            tiles = [place.next() for place in right]
            for step, tile in enumerate(tiles):
                kernel.load(tile, at(rhs, step, j, BANK))
            total, result = sums.next(), results.next()
            for step in range(depth):
                kernel.matmul(total, columns[step], tiles[step], accumulate=step > 0)
            kernel.copy(result, total)
            kernel.store(at(out, i, j, BANK), result)
    return kernel.finish()


def blocked(
    core: Core, m: int, n: int, k: int, tiles_m: int = 16, tiles_n: int = 2, tiles_k: int = 8
) -> InstructionStream:
    """All three axes in blocks; partial sums of a column of blocks stay in SBUF."""
    kernel, lhs, rhs, out = start(core, "blocked", m, n, k)
    height, width = tiles_m * P, tiles_n * BANK
    left = [kernel.buffers(1, (P, height)) for _ in range(tiles_k)]
    right = [kernel.buffers(1, (P, width)) for _ in range(tiles_k)]
    kept = [kernel.buffers(1, (P, width)) for _ in range(m // P)]
    sums = kernel.buffers(4, (P, BANK), space=Space.PSUM)
    for j in range(n // width):
        results = [place.next() for place in kept]
        for result in results:
            kernel.memset(result, 0.0)
        for part in range(0, k // P, tiles_k):
            columns = [place.next() for place in right]
            for step, tile in enumerate(columns):
                kernel.load(tile, at(rhs, part + step, j, width))
            for block in range(m // height):
                rows = [place.next() for place in left]
                for step, tile in enumerate(rows):
                    kernel.load(tile, at(lhs, part + step, block, height))
                for number in range(tiles_n * tiles_m):
                    bank, row = divmod(number, tiles_m)
                    cut, total = slice(bank * BANK, (bank + 1) * BANK), sums.next()
                    for step in range(tiles_k):
                        a = rows[step][:, row * P : (row + 1) * P]
                        kernel.matmul(total, a, columns[step][:, cut], accumulate=step > 0)
                    result = results[block * tiles_m + row][:, cut]
                    kernel.tensor_tensor(result, result, "add", total)
        for i, result in enumerate(results):  # packed in a place that holds no operand any more
            packed = kernel.sbuf((P, width), address=left[i % tiles_k].places[0].offset)
            for bank in range(tiles_n):
                cut = slice(bank * BANK, (bank + 1) * BANK)
                kernel.copy(packed[:, cut], result[:, cut])
            kernel.store(at(out, i, j, width), packed)
    return kernel.finish()


@dataclass(frozen=True)
class Published:
    """Shares of the time that the guide's profiles show."""

    kernel: Callable[..., InstructionStream]
    activity: dict[str, float]


VERSIONS = {
    "tiled": Published(tiled, {"dma": 0.9993, "tensor": 0.8728}),
    "hoisted": Published(hoisted, {"dma": 0.9973, "tensor": 0.9985}),
    "blocked": Published(blocked, {"dma": 0.2154, "tensor": 0.9950, "vector": 0.1055}),
}


def activity(played: Timeline) -> dict[str, float]:
    """Share of the time each engine, and any DMA queue, has something under way."""
    mine = played.stream.rows["queue"] >= FIRST_DMA_QUEUE
    begin = played.start[mine] - played.costs.latency[mine]
    order = np.argsort(begin)
    begin, end = begin[order], played.end[mine][order]
    reached = np.concatenate([[0.0], np.maximum.accumulate(end)[:-1]])
    busy = float(np.maximum(0, end - np.maximum(begin, reached)).sum())
    return {**played.engines, "dma": busy / played.makespan}


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    core = Core.of(load_target("trn2"))
    for name, published in VERSIONS.items():
        played = timeline(published.kernel(core, 4096, 8192, 8192), schedule=True)
        found = activity(played)
        shares = ", ".join(
            f"{engine} {share:.1%} -> {found[engine]:.1%}"
            for engine, share in published.activity.items()
        )
        print(
            f"{name:8s} active, published -> simulated: {shares}; {played.makespan / 1e6:.1f} ms, "
            f"{played.costs.total_bytes / 1e6:.0f} MB moved"
        )


if __name__ == "__main__":
    main()
