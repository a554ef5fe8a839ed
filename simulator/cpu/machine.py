"""`CpuCore`: a described CPU core as the numbers the analytical model computes with.

Made from a `Target` of family "cpu". Facts a target lacks (descriptions of CPUs that were never
calibrated) take the defaults below, so that a given description always gives the same answer.
Throughputs are bytes or operations per cycle of the core's clock.

`REACHED` comes from regressing measured times of random matmul and convolution schedules on one
AVX-512 core; `benchmarks/simulator_fidelity.py` shows how well the model ranks with it.
"""

from dataclasses import dataclass

from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target

DEFAULTS: dict[str, float] = {
    "clock.ghz": 4.0,
    "store.ports": 1.0,
    "tiles.ports": 1.0,
    "l2.bytes_per_cycle": 47.5,
    "l3.bytes_per_cycle": 29.5,
    "memory.bytes_per_cycle": 11.2,
    "l3.cores": 2.0,
    "memory.cores": 2.0,
    "barrier.cycles": 2000.0,
}
"""Calibratable facts and their values when absent: clock, and what a loop that only reads draws
from each level (measured by `calibration` on one AVX-512 core)."""
RATES = {
    "fma.ports": "fma.rate",
    "load.ports": "load.rate",
    "fma.latency": "fma.cycles",
}
"""What a CPU is described to have, and what it reaches where that was measured, which counts."""
APART = 1.25
"""Factor between what a CPU is described to have and what it reaches that is worth a sentence: a
clock that moves while it is measured makes less."""
REACHED = (0.72, 0.88, 0.9)
"""Shares of that which nests reach that compute, too (fitted; memory: assumed)."""


@dataclass(frozen=True)
class CpuCore:
    """One core and the memory below it.

    Attributes:
        lanes: elements that a vector loop runs over in one step (`vector_width`).
        registers: vector registers.
        fma_ports, load_ports, store_ports: operations a cycle.
        fma_latency: cycles.
        width: operations issued a cycle.
        reorder: operations in flight.
        line: bytes of a cache line.
        sets: number of sets of L1, L2, L3.
        lines: lines of L1, L2, L3.
        bandwidth: bytes a cycle that one core's nests draw from L2, L3 and memory.
        ghz: clock.
        threads: threads that run the parallel loops.
        shared: how many cores' worth of the bandwidth of L3, and of memory, all threads together
            have.
        barrier: cycles in which threads meet after a root statement.
        units: operations a cycle of those that are not as fast as multiply-adds, by
            `instructions.Arithmetic.unit`.
    """

    lanes: int
    registers: int
    fma_ports: float
    load_ports: float
    store_ports: float
    fma_latency: float
    width: float
    reorder: float
    line: int
    sets: tuple[int, int, int]
    lines: tuple[int, int, int]
    bandwidth: tuple[float, float, float]
    ghz: float
    threads: int = 1
    shared: tuple[float, float] = (2.0, 2.0)
    barrier: float = 2000.0
    units: tuple[tuple[str, float], ...] = ()

    def ports(self, unit: str) -> float:
        """Operations a cycle of a unit of arithmetic."""
        return dict(self.units).get(unit, self.fma_ports)

    @classmethod
    def of(cls, target: Target, threads: int = 1) -> "CpuCore":
        """Read a target of family "cpu"; `TargetError` names a fact it should have."""

        def number(name: str) -> float:
            return target.number(name) if name in target else DEFAULTS[name]

        def reached(name: str) -> float:
            return target.number(RATES[name] if RATES[name] in target else name)

        line = target.integer("line.bytes")
        lines = [target.integer(f"l{level}.kib") * 1024 // line for level in (1, 2, 3)]
        ways = [target.integer(f"l{level}.ways") for level in (1, 2, 3)]
        levels = ("l2", "l3", "memory")
        return cls(
            lanes=vector_width(target),
            registers=target.integer("vector.registers"),
            fma_ports=reached("fma.ports"),
            load_ports=reached("load.ports"),
            store_ports=number("store.ports"),
            fma_latency=reached("fma.latency"),
            width=target.number("issue.width"),
            reorder=target.number("reorder.buffer"),
            line=line,
            sets=_triple([max(1, n // w) for n, w in zip(lines, ways, strict=True)]),
            lines=_triple(lines),
            bandwidth=_floats(
                [
                    number(f"{level}.bytes_per_cycle") * share
                    for level, share in zip(levels, REACHED, strict=True)
                ]
            ),
            ghz=number("clock.ghz"),
            threads=threads,
            shared=(number("l3.cores"), number("memory.cores")),
            barrier=number("barrier.cycles"),
            units=(
                *((name.removesuffix(".ports"), number(name)) for name in _units(target)),
                ("tiles", number("tiles.ports")),
            ),
        )


def contradictions(target: Target) -> list[str]:
    """Sentences about facts that were measured to be otherwise than the CPU is described."""
    return [
        f"{name} = {target.fact(name).value:g} is {target.fact(name).source}, and {rate} = "
        f"{target.number(rate):g} was measured, which the simulator reckons with"
        for name, rate in RATES.items()
        if rate in target and not 1 / APART < target.number(rate) / target.number(name) < APART
    ]


def _units(target: Target) -> list[str]:
    """Facts of dot products: `dot.uint8.ports`, by the element type of what is not the weights."""
    return [name for name, _ in target.facts if name.startswith("dot.") and name.endswith(".ports")]


def _triple(values: list[int]) -> tuple[int, int, int]:
    return values[0], values[1], values[2]


def _floats(values: list[float]) -> tuple[float, float, float]:
    return values[0], values[1], values[2]
