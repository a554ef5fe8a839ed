"""`CpuCore`: a described CPU core as the numbers the analytical model computes with.

Made from a `Target` of family "cpu". What was measured of a machine counts before what its kind is
described to have (a known target that is called as LLVM calls the processor), and that before what
is assumed of any CPU; facts that all of them lack take the defaults below. So a given description
always gives the same answer. Throughputs are bytes or operations per cycle of the core's clock.

`REACHED` comes from regressing measured times of random matmul and convolution schedules on one
AVX-512 core; `benchmarks/simulator_fidelity.py` shows how well the model ranks with it.
"""

from dataclasses import dataclass
from functools import lru_cache

from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Fact, Target, load_target, target_files

DEFAULTS: dict[str, float] = {
    "clock.ghz": 4.0,
    "store.ports": 1.0,
    "tiles.ports": 1.0,
    "l2.bytes_per_cycle": 47.5,
    "l3.bytes_per_cycle": 29.5,
    "memory.bytes_per_cycle": 11.2,
    "memory.scattered_bytes_per_cycle": 4.0,
    "l3.cores": 2.0,
    "memory.cores": 2.0,
    "barrier.cycles": 2000.0,
}
"""Calibratable facts and their values when absent: clock, and what a loop that only reads draws
from each level (measured by `calibration` on one AVX-512 core). What pages in no order draw from
memory: some 24 lines in flight (AMD's guide to Zen 4, 2.12) in some 400 cycles."""
RATES = {
    "fma.ports": "fma.rate",
    "load.ports": "load.rate",
    "fma.latency": "fma.cycles",
}
"""What a CPU is described to have, and what it reaches where that was measured, which counts."""
ASSUMED, STATED = "assumed", "--set"
"""Sources of facts that any CPU is given, and of those that a user has the last word on."""
KIN = {
    "broadwell": "haswell",
    "cascadelake": "skylake_avx512",
    "cooperlake": "skylake_avx512",
    "emeraldrapids": "sapphirerapids",
    "znver2": "znver3",
}
"""Processors by LLVM's names that have the core of another one, as far as the model looks."""
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
        fma_ports, load_ports, store_ports: operations on whole vectors a cycle.
        narrow_loads: how much of a vector's load one of a single element takes.
        fma_latency: cycles.
        width: operations issued a cycle.
        reorder: operations in flight.
        line: bytes of a cache line.
        sets: number of sets of L1, L2, L3.
        lines: lines of L1, L2, L3.
        bandwidth: bytes a cycle that one core's nests draw from L2, L3 and memory.
        scattered: and from pages of memory that no prefetcher foresees.
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
    scattered: float = 4.0
    narrow_loads: float = 1.0
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
        target = described(target)

        def number(name: str) -> float:
            return target.number(name) if name in target else DEFAULTS[name]

        def reached(name: str) -> float:
            rate = RATES[name]
            return target.number(rate) if rate in target else _described(target, name)

        line = target.integer("line.bytes")
        lines = [target.integer(f"l{level}.kib") * 1024 // line for level in (1, 2, 3)]
        ways = [target.integer(f"l{level}.ways") for level in (1, 2, 3)]
        levels = ("l2", "l3", "memory")
        return cls(
            lanes=vector_width(target),
            registers=target.integer("vector.registers"),
            fma_ports=reached("fma.ports"),
            load_ports=reached("load.ports"),
            store_ports=_described(target, "store.ports"),
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
            narrow_loads=min(1.0, reached("load.ports") / target.number("load.ports")),
            ghz=number("clock.ghz"),
            scattered=number("memory.scattered_bytes_per_cycle"),
            threads=threads,
            shared=(number("l3.cores"), number("memory.cores")),
            barrier=number("barrier.cycles"),
            units=(
                *((name.removesuffix(".ports"), number(name)) for name in _units(target)),
                ("tiles", number("tiles.ports")),
            ),
        )


def described(target: Target) -> Target:
    """The target with what its kind is described to have in place of what is assumed of any CPU.

    What was measured or stated of it stays, as does all of a CPU whose kind nobody described.
    """
    name = target.text("isa.processor")
    kind = _kind(KIN.get(name, name.replace("-", "_")))
    if kind is None:
        return target
    own = dict(target.facts)

    def missing(name: str) -> bool:
        return name not in own or own[name].source == ASSUMED

    more: dict[str, Fact] = {}
    for name, fact in kind.facts:
        resource, _, what = name.partition(".")
        if missing(name) and (what != "bytes" or missing(f"{resource}.ports")):
            more[name] = fact
    return Target.of(target.name, target.family, own | more, target.doc) if more else target


@lru_cache(maxsize=16)
def _kind(name: str) -> Target | None:
    """The CPU that is known by a name; None if none is."""
    kind = load_target(name) if name in target_files else None
    return kind if kind is not None and kind.family == "cpu" else None


def _described(target: Target, name: str) -> float:
    """Operations on whole vectors that a CPU is described to begin in a cycle (or what else `name`
    is): as many as its units, and as their bytes are enough for.
    """
    if name not in target:
        return DEFAULTS[name]
    ports, fact = target.number(name), target.fact(name)
    together = name.replace(".ports", ".bytes")
    if together == name or together not in target or fact.calibratable or fact.source == STATED:
        return ports
    return min(ports, target.number(together) / target.number("vector.bytes"))


def contradictions(target: Target) -> list[str]:
    """Sentences about facts that were measured to be otherwise than the CPU is described."""
    target = described(target)
    apart = []
    for name, rate in RATES.items():
        if rate not in target:
            continue
        said, measured = _described(target, name), target.number(rate)
        if not 1 / APART < measured / said < APART:
            apart.append(
                f"{name} = {said:g} is {target.fact(name).source}, and {rate} = {measured:g} was "
                "measured, which the simulator reckons with"
            )
    return apart


def _units(target: Target) -> list[str]:
    """Facts of dot products: `dot.uint8.ports`, by the element type of what is not the weights."""
    return [name for name, _ in target.facts if name.startswith("dot.") and name.endswith(".ports")]


def _triple(values: list[int]) -> tuple[int, int, int]:
    return values[0], values[1], values[2]


def _floats(values: list[float]) -> tuple[float, float, float]:
    return values[0], values[1], values[2]
