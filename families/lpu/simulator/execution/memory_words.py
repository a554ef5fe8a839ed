"""What a word of MEM holds in a cycle: the last write before it, or what lay there at the start.

No memory is simulated: every write token is known by its word and the cycle from which reads see
it, so that a read finds its write by looking it up.

Invariants: a read in cycle c sees writes that were issued `delay.write` or more cycles before.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen.dataflow import DTYPES, Ints
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, BurstSchedule, Region, latency
from tilesmith.search_space.support.errors import InputError, VerificationError

Bytes = NDArray[np.uint8]

_CYCLES = 1 << 38


class MemoryWords:
    """See the module's docstring.

    Args:
        contents: (rows, 320) of each tensor that is there at the start.
    """

    def __init__(
        self, schedule: BurstSchedule, contents: Mapping[str, NDArray[np.generic]]
    ) -> None:
        self.schedule = schedule
        table = schedule.table
        writes = np.flatnonzero(table["op"] == BurstOp.WRITE)
        self._written(writes)
        self._initial(contents)

    def word(self, number: int, bank: int, address: Ints) -> Ints:
        """The number of words of a bank."""
        return (2 * number + bank) * self.schedule.chip.bank_words + address

    def _written(self, writes: Ints) -> None:
        table, chip = self.schedule.table, self.schedule.chip
        count = table["count"][writes].astype(np.int64)
        self.token_row = np.repeat(writes, count)
        first = np.cumsum(count) - count
        self.token = np.arange(count.sum()) - np.repeat(first, count)
        rows = table[self.token_row] if len(writes) else table[:0]
        words = (
            (2 * rows["queue"].astype(np.int64) + rows["bank"]) * chip.bank_words
            + rows["address"] + rows["step"].astype(np.int64) * self.token
        )  # fmt: skip
        seen = rows["cycle"] + rows["interval"] * self.token + latency(chip, BurstOp.WRITE)
        self.keys = words * _CYCLES + seen
        order = np.argsort(self.keys, kind="stable")
        self.keys, self.token_row, self.token = (
            column[order] for column in (self.keys, self.token_row, self.token)
        )

    def _initial(self, contents: Mapping[str, NDArray[np.generic]]) -> None:
        """Words that regions fill: first word, words, and their bytes, sorted."""
        spans: list[tuple[int, Bytes]] = []
        places = {place.name: place for place in self.schedule.places}
        for region in self.schedule.regions:
            place = places[region.tensor]
            if place.role in ("input", "constant", "state"):
                given = contents.get(region.tensor)
                if given is None:
                    raise InputError(
                        f"schedule '{self.schedule.name}' needs the contents of {place.role} "
                        f"'{region.tensor}'"
                    )
                if given.shape != (place.rows, 320) or given.dtype != np.dtype(place.dtype):
                    raise InputError(
                        f"schedule '{self.schedule.name}': '{region.tensor}' is {given.dtype}"
                        f"{list(given.shape)}; {place.dtype}[{place.rows}, 320] is expected"
                    )
                rows = given[region.first : region.first + region.rows]
            elif region.zeros:
                rows = np.zeros((region.rows, 320), place.dtype)
            else:
                continue
            spans += self._spans(region, byte_planes(rows))
        spans.sort(key=lambda span: span[0])
        self.first = np.array([first for first, _ in spans], np.int64)
        self.held = [held for _, held in spans]

    def _spans(self, region: Region, planes: list[Bytes]) -> list[tuple[int, Bytes]]:
        stripes = len(region.homes)
        return [
            (int(self.word(number, bank, np.array(address))), plane[stripe::stripes])
            for stripe, homes in enumerate(region.homes)
            for plane, (number, bank, address) in zip(planes, homes, strict=True)
            if stripe < region.rows
        ]

    def find(self, words: Ints, cycles: Ints) -> Ints:
        """Numbers of the write tokens that reads of words in those cycles see; -1: none."""
        at = np.searchsorted(self.keys, words * _CYCLES + cycles, side="right") - 1
        if not len(self.keys):
            return np.full(len(words), -1, np.int64)
        same = (at >= 0) & (self.keys[np.maximum(at, 0)] // _CYCLES == words)
        return np.where(same, at, -1)

    def initial(self, words: Ints, row: int) -> Bytes:
        """What words held at the start.

        Raises:
            VerificationError: nothing was there, and nothing written since.
        """
        span = np.searchsorted(self.first, words, side="right") - 1
        contents = np.empty((len(words), 320), np.uint8)
        for number in np.unique(span).tolist():
            mine = span == number
            offsets = words[mine] - self.first[number] if number >= 0 else words[mine]
            if number < 0 or int(offsets.max()) >= len(self.held[number]):
                raise VerificationError(
                    f"schedule '{self.schedule.name}', instruction {row}: a word is read that "
                    "nothing was written to"
                )
            contents[mine] = self.held[number][offsets]
        return contents


def byte_planes(rows: NDArray[np.generic]) -> list[Bytes]:
    """The bytes of each element, the least significant first: arrays of (rows, 320)."""
    size = DTYPES[rows.dtype.name]
    whole = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1, size)
    return [np.ascontiguousarray(whole[:, :, byte]) for byte in range(size)]


def joined(planes: list[Bytes], dtype: str) -> NDArray[np.generic]:
    """Elements of bytes."""
    if len(planes) == 1:
        return planes[0].view(dtype)
    return np.stack(planes, axis=-1).reshape(len(planes[0]), -1).view(dtype)
