"""Moves: rows by index, transposes."""

from __future__ import annotations

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from written.common import P, Transposer, blocks, pieces

WIDTH = 2048
"""Columns of a block of a transpose: its rows are 8 KiB in HBM."""


def embedding(core: Core, entries: int, features: int, count: int) -> InstructionStream:
    """y[i] = table[index[i]]: DMA takes the addresses of its rows from SBUF."""
    kernel = Kernel("embedding", core)
    table = kernel.input("table", (entries, features))
    index, y = kernel.input("index", (count, 1), "int32"), kernel.output("y", (count, features))
    picks, rows = kernel.buffers(2, (P, 1), "int32"), kernel.buffers(3, (P, features))
    for source, out in blocks(index, y):
        pick, row = picks.next(), rows.next()
        kernel.load(pick, source)
        kernel.gather(row, table[0].broadcast(P), pick, features, entries)
        kernel.store(out, row)
    return kernel.finish()


def select_columns(core: Core, rows: int, columns: int, count: int) -> InstructionStream:
    """y[:, i] = x[:, index[i]] by local gathers; every 16 partitions need their copy of the
    indices, 16 of them in a column.
    """
    kernel = Kernel("select_columns", core)
    x, y = kernel.input("x", (rows, columns)), kernel.output("y", (rows, count))
    index = kernel.input("index", (count // 16, 16), "int32").permute(1, 0)
    picks = kernel.sbuf((P, count // 16), "int32", name="index")
    for group in pieces(P, 16):
        kernel.load(picks[group], index)
    loaded, stored = kernel.buffers(2, (P, columns)), kernel.buffers(2, (P, count))
    for source, out in blocks(x, y):
        tile, result = loaded.next(), stored.next()
        kernel.load(tile, source)
        kernel.local_gather(result, tile, picks)
        kernel.store(out, result)
    return kernel.finish()


def transpose2d(core: Core, rows: int, columns: int, dtype: str = "float32") -> InstructionStream:
    """y = x.T by 128 x 128 passes of the tensor engine, long rows in HBM on both sides."""
    kernel = Kernel("transpose2d", core)
    x, y = kernel.input("x", (rows, columns), dtype), kernel.output("y", (columns, rows), dtype)
    height = min(WIDTH, rows)
    stored = kernel.buffers(2, (P, height), dtype, name="y")
    wide = kernel.buffers(1, (P, height // P, min(WIDTH, columns)), dtype, name="wide")
    turn = Transposer(kernel, dtype)
    for strip in pieces(rows, height):
        for part in pieces(columns, WIDTH):
            tile = wide.next()[:, :, : part.stop - part.start]
            for i, (source,) in enumerate(blocks(x[strip, part])):
                kernel.load(tile[:, i], source)
            for start in range(0, part.stop - part.start, P):
                result = stored.next()
                squares = [tile[:, i, start : start + P] for i in range(height // P)]
                turn.each(result.split(1, height // P, P), squares)
                first = part.start + start
                kernel.store(y[first : first + P, strip], result)
    return kernel.finish()
