"""Sequences that decode together, and the blocks of cache they hold.

All of them get one token a step, so nothing is kept for each and every step: a counter of steps
stands for all. A sequence is the step at which it ends and an offset: its tokens in the cache are
the offset plus the counter. Which sequences need a further block in a step depends on the offset's
remainder by the block's size alone, so a count for each remainder tells how far the free blocks
last. A run of any number of steps costs a few operations.

Invariants: `CacheBlocks.used` is the sum of the blocks of all sequences, those of `reserve`
included, and never above `total`.
"""

import heapq
from dataclasses import dataclass


@dataclass(frozen=True)
class _Sequence:
    offset: int
    """Tokens in the cache, less the counter."""
    end: int
    """The counter at its last token."""


@dataclass
class CacheBlocks:
    """Those of a cache, which several groups of sequences may share."""

    total: int
    used: int = 0

    @property
    def free(self) -> int:
        """The number of blocks that no sequence holds."""
        return self.total - self.used


class Running:
    """See the module's docstring.

    Args:
        held: the blocks of the cache.
        size: tokens of a block.
    """

    def __init__(self, held: CacheBlocks, size: int) -> None:
        self.held, self.size = held, size
        self._step = 0
        self._offsets = 0
        self._phases = [0] * size
        self._sequences: dict[int, _Sequence] = {}
        self._ends: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def context(self) -> float:
        """Tokens that a sequence has in the cache, on average."""
        return self._offsets / len(self._sequences) + self._step

    @property
    def until_end(self) -> int:
        """Steps until the next sequence ends."""
        while self._sequences.get(self._ends[0][1], _GONE).end != self._ends[0][0]:
            heapq.heappop(self._ends)
        return self._ends[0][0] - self._step

    def blocks_of(self, tokens: int) -> int:
        """The number of blocks that hold this many tokens."""
        return -(-tokens // self.size)

    def reserve(self, tokens: int) -> None:
        """Take the blocks of a prompt that is about to be worked on."""
        self.held.used += self.blocks_of(tokens)

    def release(self, tokens: int) -> None:
        """Give reserved blocks back."""
        self.held.used -= self.blocks_of(tokens)

    def join(self, request: int, tokens: int, remaining: int) -> None:
        """A sequence with reserved blocks decodes from now on.

        Args:
            request: its number.
            tokens: what it has in the cache, as it was reserved.
            remaining: steps until its last token, at least 1.
        """
        sequence = _Sequence(tokens - self._step, self._step + remaining)
        self._sequences[request] = sequence
        self._offsets += sequence.offset
        self._phases[sequence.offset % self.size] += 1
        heapq.heappush(self._ends, (sequence.end, request))

    def lasting(self, most: int, free: int | None = None) -> int:
        """Steps that the free blocks, or so many of them, last; at most `most`."""
        free = self.held.free if free is None else free
        count = len(self._sequences)
        rounds = free // count
        if rounds * self.size >= most:
            return most
        free -= rounds * count
        for taken in range(rounds * self.size, most):
            free -= self._needed(taken)
            if free < 0:
                return taken
        return most

    def advance(self, steps: int) -> int:
        """Decode; returns the blocks held in the last of these steps."""
        rounds, rest = divmod(steps, self.size)
        self.held.used += rounds * len(self._sequences) + sum(map(self._needed, range(rest)))
        self._step += steps
        return self.held.used

    def ended(self) -> list[int]:
        """Remove the sequences that have their last token, and return them in order."""
        ended = []
        while self._sequences and self.until_end == 0:
            ended.append(heapq.heappop(self._ends)[1])
            self._leave(ended[-1])
        return ended

    def preempt(self) -> tuple[int, int]:
        """Send away who came last: its number, and the tokens it still had to get."""
        request = next(reversed(self._sequences))
        remaining = self._sequences[request].end - self._step
        self._leave(request)
        return request, remaining

    def _needed(self, ahead: int) -> int:
        """The number of blocks that a step needs, this many steps ahead."""
        return self._phases[-(self._step + ahead) % self.size]

    def _leave(self, request: int) -> None:
        sequence = self._sequences.pop(request)
        self._offsets -= sequence.offset
        self._phases[sequence.offset % self.size] -= 1
        self.release(sequence.offset + self._step)


_GONE = _Sequence(0, -1)
