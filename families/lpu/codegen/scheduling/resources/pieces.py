"""Accesses of rows as regular pieces: which words of which stripe, at which vectors.

Rows of a chain are any numbers; a burst's addresses are first + i x step, and its vectors come
evenly. `pieces` cuts rows into bursts, greedily.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import Ints


class WordPiece(NamedTuple):
    """Vectors first, first + every, ... of a chain are words `word`, `word + step`, ... ."""

    first: int
    length: int
    every: int
    block: int
    stripe: int
    word: int
    step: int

    @property
    def span(self) -> int:
        """From its first vector to behind its last."""
        return (self.length - 1) * self.every + 1


def pieces(
    rows: Ints, block: int, stripes: int, vectors: Ints | None = None
) -> tuple[WordPiece, ...]:
    """Cut rows into pieces. (Chains of equal layers, and a chain that is looked at several times,
    have the same rows: what was cut is kept.)

    Args:
        rows: row numbers, shape (count,).
        block: rows a block.
        stripes: rows of a block are on so many places in turn.
        vectors: when each row's turn is, ascending; in order from 0 by default.
    """
    turns = None if vectors is None else vectors.tobytes()
    return _pieces(rows.tobytes(), block, stripes, turns)


@lru_cache(maxsize=1 << 14)
def _pieces(
    numbers: bytes, block: int, stripes: int, vectors: bytes | None
) -> tuple[WordPiece, ...]:
    rows: Ints = np.frombuffer(numbers, np.int64)
    turns: Ints = np.arange(len(rows)) if vectors is None else np.frombuffer(vectors, np.int64)
    blocks, inside = np.divmod(rows, block)
    words, lanes = np.divmod(inside, stripes)
    keys = blocks * stripes + lanes
    pieces: list[WordPiece] = []
    first = keys[0]
    groups = [np.arange(len(rows))]
    if (keys != first).any():
        order = np.argsort(keys, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)
    for group in groups:
        key = int(keys[group[0]])
        at = divmod(key, stripes)
        pieces += [
            WordPiece(w, n, e, *at, a, s) for w, n, e, a, s in runs(turns[group], words[group])
        ]
    return tuple(sorted(pieces))


def runs(when: Ints, words: Ints) -> list[tuple[int, int, int, int, int]]:
    """(first, count, every, word, step) of stretches in which both grow evenly."""
    count = len(when)
    if count == 1:
        return [(int(when[0]), 1, 1, int(words[0]), 0)]
    gaps = np.stack((np.diff(when), np.diff(words)))
    turns = np.flatnonzero((np.diff(gaps, axis=1) != 0).any(axis=0)) + 1
    stretches = []
    begin = 0
    bounds = [*turns.tolist(), count - 1]
    for bound in bounds:  # a gap `bound` differs from the one before it
        if bound < begin:
            continue
        length = bound - begin + 1
        if length == 1 and bound < count - 1:
            continue
        every, step = (int(gaps[n, begin]) if length > 1 else 1 - n for n in (0, 1))
        stretches.append((int(when[begin]), length, every, int(words[begin]), step))
        begin = bound + 1
    return stretches
