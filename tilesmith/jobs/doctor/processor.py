"""The processor: its model, instruction sets, caches and cores, as the compiler takes them."""

from collections.abc import Iterator

from tilesmith.codegen.host.machine import host_instruction_sets, host_target
from tilesmith.jobs.doctor.finding import Finding
from tilesmith.simulator.dispatch import simulators
from tilesmith.tuner.machines.cores import physical, usable
from tilesmith.tuner.machines.identity import host_facts, machine_name

_SECTION = "processor"


def findings() -> Iterator[Finding]:
    """Of the processor that this process runs on."""
    facts = host_facts()
    yield _fine("machine", machine_name())
    yield _fine("model", str(facts.get("model", "unknown")))
    yield from _instructions()
    yield from _rates()
    yield from _cores()
    memory = facts.get("memory_mib")
    if isinstance(memory, int):
        yield _fine("memory", f"{memory / 1024:.1f} GiB")
    governor = facts.get("governor")
    if governor not in (None, "performance"):
        advice = "set it to 'performance' while tuning, so that clocks do not drift"
        yield Finding(_SECTION, "governor", "note", str(governor), advice)


def _fine(name: str, value: str) -> Finding:
    return Finding(_SECTION, name, "fine", value)


def _instructions() -> Iterator[Finding]:
    target = host_target()
    yield _fine("LLVM calls it", f"{target.text('isa.processor')}, {target.text('isa.triple')}")
    isa, width = target.text("isa.name"), target.integer("vector.bytes") * 8
    yield _fine("instruction set", f"{isa}: vectors of {width} bits")
    others = [name for name in host_instruction_sets() if name != isa]
    if others:
        yield _fine("it has besides", ", ".join(others))
    sizes = ((f"L{level}", target.integer(f"l{level}.kib")) for level in (1, 2, 3))
    yield _fine("data caches", ", ".join(f"{name} {kib:,} KiB" for name, kib in sizes))


def _rates() -> Iterator[Finding]:
    """What was measured of a core, if it was."""
    target = host_target()
    simulator = simulators[target.family]
    target = simulator.calibrated(target, measure=False)
    if "fma.rate" not in target:
        return
    rates = ("fma.rate", "load.rate", "store.ports", "clock.ghz")
    fused, loads, stores, clock = (target.number(name) for name in rates)
    begun = f"{fused:g} multiply-adds, {loads:g} loads, {stores:g} stores of whole vectors"
    yield _fine("begins a cycle", f"{begun}, at {clock:g} GHz")
    for sentence in simulator.contradictions(target):
        yield _fine("measured otherwise", sentence)


def _cores() -> Iterator[Finding]:
    threads = usable()
    cores = physical(threads)
    value = f"{len(cores)} cores, {len(threads)} hardware threads for this process"
    if len(cores) < len(threads):
        advice = "threads of one core share its units: tune with --threads no larger than the cores"
        yield Finding(_SECTION, "cores", "note", value, advice)
    else:
        yield _fine("cores", value)
