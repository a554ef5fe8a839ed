"""Serving told step by step and sequence by sequence: what the fast simulation must agree with.

One object a sequence, one turn of a loop a step, blocks counted anew each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilesmith.capabilities.planning.batching.events import Engine
from tilesmith.capabilities.planning.batching.traffic import Traffic


@dataclass
class Request:
    number: int
    arrival: float
    inputs: int
    outputs: int
    emitted: int = 0
    cached: int = 0
    filled: int = 0
    first: float = -1.0
    last: float = -1.0
    sent_away: int = 0

    def emit(self, clock: float) -> None:
        self.emitted += 1
        self.first = clock if self.first < 0 else self.first
        if self.emitted == self.outputs:
            self.last = clock


@dataclass
class Naive:
    engine: Engine
    clock: float = 0.0
    waiting: list[Request] = field(default_factory=list)
    filling: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    peak: int = 0

    def held(self) -> int:
        size = self.engine.block
        return sum(-(-r.cached // size) for r in self.running) + sum(
            -(-(r.inputs + r.emitted) // size) for r in self.filling
        )

    def total(self) -> int:
        return self.engine.cache_tokens // self.engine.block

    def fits(self, request: Request) -> bool:
        others = len(self.running) + len(self.filling)
        kept = -(-self.total() // 100) if others else 0
        need = -(-(request.inputs + request.emitted) // self.engine.block)
        return others < self.engine.batch and self.held() + need + kept <= self.total()

    def send_away(self, request: Request) -> None:
        request.cached = request.filled = 0
        request.sent_away += 1
        self.waiting.insert(0, request)

    def crowded(self) -> bool:
        growing = sum(r.cached % self.engine.block == 0 for r in self.running)
        return self.held() + growing > self.total()

    def make_room(self) -> None:
        while self.running and self.crowded():
            self.send_away((self.filling or self.running).pop())

    def tokens(self) -> None:
        """Every running sequence writes a token and gets one."""
        for request in self.running:
            request.cached += 1
            request.emit(self.clock)
        self.peak = max(self.peak, self.held())
        self.running = [r for r in self.running if r.last < 0]

    def decoding(self) -> float:
        if not self.running:
            return 0.0
        mean = sum(r.cached for r in self.running) / len(self.running)
        return self.engine.times.decode(len(self.running), mean)

    def begin(self, request: Request) -> None:
        request.cached = request.inputs + request.emitted
        request.emit(self.clock)
        if request.last < 0:
            self.running.append(request)

    def prefill_first(self) -> None:
        while self.waiting and self.fits(self.waiting[0]):
            tokens = sum(r.inputs + r.emitted for r in [*self.filling, self.waiting[0]])
            if self.filling and tokens > self.engine.budget:
                break
            self.filling.append(self.waiting.pop(0))
        if self.filling:
            tokens, count = sum(r.inputs + r.emitted for r in self.filling), len(self.filling)
            self.clock += self.engine.times.prefill(count, -(-tokens // count), 0)
            self.peak = max(self.peak, self.held())
            started, self.filling = self.filling, []
            for request in started:
                self.begin(request)
            return
        self.make_room()
        self.clock += self.decoding()
        self.tokens()

    def chunked(self) -> None:
        while self.waiting and self.fits(self.waiting[0]):
            self.filling.append(self.waiting.pop(0))
        self.make_room()
        left = self.engine.budget - len(self.running)
        worked = []
        for request in self.filling:
            new = min(left, request.inputs + request.emitted - request.filled)
            if new:
                worked.append((request, new))
            left -= new
        seconds = self.decoding()
        if worked:
            tokens = -(-sum(new for _, new in worked) // len(worked))
            before = sum(r.filled for r, _ in worked) // len(worked)
            prefilling = self.engine.times.prefill(len(worked), tokens, before)
            seconds = self.engine.times.mixed(seconds, prefilling) if self.running else prefilling
        self.clock += seconds
        self.peak = max(self.peak, self.held())
        self.tokens()
        for request, new in worked:
            request.filled += new
            if request.filled == request.inputs + request.emitted:
                self.filling.remove(request)
                self.begin(request)


def naive(engine: Engine, traffic: Traffic) -> tuple[list[Request], int]:
    """All requests served, and the most blocks held."""
    columns = zip(
        traffic.arrivals.tolist(), traffic.inputs.tolist(), traffic.outputs.tolist(), strict=True
    )
    requests = [Request(n, *column) for n, column in enumerate(columns)]
    found, coming = Naive(engine), list(requests)
    while coming or found.waiting or found.filling or found.running:
        while coming and coming[0].arrival <= found.clock:
            found.waiting.append(coming.pop(0))
        if not (found.waiting or found.filling or found.running):
            found.clock = coming[0].arrival
        else:
            getattr(found, engine.policy)()
    return requests, found.peak
