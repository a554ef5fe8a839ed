"""The result of serving: when each request got its tokens, and what the machine did meanwhile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tilesmith.capabilities.planning.batching.traffic import Traffic

    Floats = NDArray[np.float64]

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, eq=False)
class _Timeline:
    """How full the machine was, at the end of each step: arrays of one length."""

    seconds: "Floats"
    running: "NDArray[np.int64]"
    waiting: "NDArray[np.int64]"
    used: "Floats"
    """Share of the cache's blocks held."""


@dataclass(frozen=True, eq=False)
class Served:
    """Times of every request, and how busy the machine was.

    Attributes:
        arrivals, first, last: seconds of each request's arrival, first and last token.
        inputs, outputs: its tokens.
        preemptions: how often it was sent away.
        gaps: seconds between tokens of one sequence, and how many there were of each: (2, gaps).
        machine_s: seconds from the first arrival to the last token, summed over replicas.
        busy_s: seconds in which steps ran, of all replicas.
        block_s: blocks held times seconds, of all replicas.
        peak: most blocks held at once, by one replica.
        blocks: what one replica has.
        replicas: how many there were.
        timeline: of the first replica.
    """

    arrivals: "Floats"
    first: "Floats"
    last: "Floats"
    inputs: "NDArray[np.int64]"
    outputs: "NDArray[np.int64]"
    preemptions: "NDArray[np.int64]"
    gaps: "Floats"
    machine_s: float
    busy_s: float
    block_s: float
    peak: int
    blocks: int
    replicas: int
    timeline: _Timeline

    @classmethod
    def together(cls, parts: "Sequence[Served]") -> "Served":
        """The results of several replicas, joined."""
        joined = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("arrivals", "first", "last", "inputs", "outputs", "preemptions")
        }
        return cls(
            **joined,
            gaps=np.concatenate([part.gaps for part in parts], axis=1),
            machine_s=sum(part.machine_s for part in parts),
            busy_s=sum(part.busy_s for part in parts),
            block_s=sum(part.block_s for part in parts),
            peak=max(part.peak for part in parts),
            blocks=parts[0].blocks,
            replicas=sum(part.replicas for part in parts),
            timeline=parts[0].timeline,
        )

    def __len__(self) -> int:
        return len(self.arrivals)

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last token."""
        return float(self.last.max() - self.arrivals.min())

    @property
    def ttft_s(self) -> "Floats":
        """Time to first token of each request."""
        return self.first - self.arrivals

    @property
    def tpot_s(self) -> "Floats":
        """Time per output token after the first, of each request that has several."""
        several = self.outputs > 1
        return (self.last - self.first)[several] / (self.outputs[several] - 1)

    @property
    def whole_s(self) -> "Floats":
        """Seconds from arrival to the last token of each request."""
        return self.last - self.arrivals

    @property
    def tokens_per_s(self) -> float:
        """Tokens of answers a second."""
        return float(self.outputs.sum()) / self.span_s

    def from_second(self, start: float) -> "Served":
        """The requests that arrived from then on; the machine's part stays whole."""
        kept = self.arrivals >= start
        if kept.all() or not kept.any():
            return self
        names = ("arrivals", "first", "last", "inputs", "outputs", "preemptions")
        return Served(**{**vars(self), **{name: getattr(self, name)[kept] for name in names}})

    def gap_s(self, percentile: float) -> float:
        """A percentile of the time between two tokens, of all tokens."""
        seconds, counts = self.gaps
        if not len(seconds):
            return 0.0
        order = np.argsort(seconds)
        reached = np.cumsum(counts[order])
        at = np.searchsorted(reached, reached[-1] * percentile / 100)
        return float(seconds[order][min(int(at), len(order) - 1)])

    def to_json(self) -> dict[str, Any]:
        """Percentiles and shares, as plain data."""
        gaps = {f"p{p}": self.gap_s(p) * 1e3 for p in PERCENTILES}
        return {
            "requests": len(self),
            "seconds": self.span_s,
            "requests_per_s": len(self) / self.span_s,
            "tokens_per_s": self.tokens_per_s,
            "ttft_ms": percentiles(self.ttft_s),
            "tpot_ms": percentiles(self.tpot_s),
            "end_to_end_ms": percentiles(self.whole_s),
            "between_tokens_ms": gaps,
            "busy": self.busy_s / self.machine_s,
            "cache": {
                "mean": self.block_s / (self.blocks * self.machine_s),
                "peak": self.peak / self.blocks,
            },
            "preemptions": int(self.preemptions.sum()),
        }


def percentiles(seconds: "Floats") -> Mapping[str, float | None]:
    """Mean and percentiles in milliseconds; nothing of no values."""
    if not len(seconds):
        return {"mean": None, **{f"p{p}": None for p in PERCENTILES}}
    values = np.percentile(seconds, PERCENTILES) * 1e3
    named = {f"p{p}": float(value) for p, value in zip(PERCENTILES, values, strict=True)}
    return {"mean": float(seconds.mean() * 1e3), **named}


class Journal:
    """Notes taken while a replica serves."""

    def __init__(self, requests: int) -> None:
        self._first = [-1.0] * requests
        self._last = [-1.0] * requests
        self._preemptions = [0] * requests
        self._gaps: list[tuple[float, float]] = []
        self._pauses: list[tuple[int, float]] = []
        self._samples: list[tuple[float, int, int, int]] = []
        self._busy = self._block_s = 0.0
        self._peak = 0

    def first(self, request: int, clock: float) -> None:
        """A request has a token after its prompt; only the first time counts."""
        if self._first[request] < 0:
            self._first[request] = clock

    def last(self, request: int, clock: float) -> None:
        """A request has its last token."""
        assert self._last[request] < 0, "every request is served once"
        self._last[request] = clock

    def preempted(self, request: int) -> None:
        """Note that a request was preempted."""
        self._preemptions[request] += 1

    def gap(self, seconds: float, tokens: float) -> None:
        """Note that `count` tokens came `seconds` after the token before."""
        if tokens:
            self._gaps.append((seconds, tokens))

    def paused(self, sequences: int, seconds: float) -> None:
        """Those that run waited for prompts of others."""
        if sequences:
            self._pauses.append((sequences, seconds))

    def decoded(self, sequences: int, steps: int, first: float, seconds: float) -> None:
        """So many sequences got a token in each of so many steps, `first` seconds in the first."""
        if self._pauses:
            self._resumed(sequences, first)
            steps, seconds = steps - 1, seconds - first
        if steps:
            self._gaps.append((seconds / steps, sequences * steps))

    def _resumed(self, sequences: int, seconds: float) -> None:
        """A first step after pauses: who was there at a pause waited for it and all later ones."""
        counted, waited = 0, sum(pause for _, pause in self._pauses)
        for present, pause in self._pauses:
            if counted < min(present, sequences):
                self._gaps.append((waited + seconds, min(present, sequences) - counted))
                counted = min(present, sequences)
            waited -= pause
        self._pauses.clear()
        if counted < sequences:
            self._gaps.append((seconds, sequences - counted))

    def held(self, blocks: int, seconds: float) -> None:
        """Steps ran for so long, with so many blocks held."""
        self._busy += seconds
        self._block_s += blocks * seconds
        self._peak = max(self._peak, blocks)

    def sample(self, clock: float, running: int, waiting: int, used: int) -> None:
        """Note how full the machine is now."""
        self._samples.append((clock, running, waiting, used))

    def served(self, traffic: "Traffic", blocks: int) -> Served:
        """The result, from all notes."""
        seconds, running, waiting, used = np.array(self._samples).reshape(-1, 4).T
        return Served(
            traffic.arrivals,
            np.array(self._first),
            np.array(self._last),
            traffic.inputs,
            traffic.outputs,
            np.array(self._preemptions, np.int64),
            np.array(self._gaps).reshape(-1, 2).T,
            max(self._last) - float(traffic.arrivals[0]),
            self._busy,
            self._block_s,
            self._peak,
            blocks,
            1,
            _Timeline(seconds, running.astype(np.int64), waiting.astype(np.int64), used / blocks),
        )
