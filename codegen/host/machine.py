"""The CPU we sit on, as a target: instruction set, vector width, registers, caches, threads.

What the processor can do comes from LLVM, the caches from the operating system. Measured constants
(clock, bandwidths, latencies) are calibratable facts with sane defaults; `simulator.cpu` fits them.
A file may say otherwise.
`cpu_target` also describes CPUs we do not sit on, for cross-compilation. Invariants: a processor is
given an instruction set that it has; one that has none we know is called by its own name; what
describes another CPU is the same on every machine.

`TILESMITH_CPU=file.toml` names a description that stands in for what this machine says of itself.
Hypervisors and containers often tell caches and processors that are not there, and a test has to
see other machines than the one that it runs on. Such a file says what the machine is taken for:

    processor = "znver4"                     # LLVM's name of it; default: what LLVM says
    without = ["amx-*", "avx512fp16"]        # features of LLVM that it is taken to lack
    threads = 8                              # any fact of a CPU but isa.* and vector.*
    [l2]
    kib = 1024

Invariant: features are only taken away, so that code made here runs here.
"""

import ctypes
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from tilesmith.search_space.hardware.instruction_set import (
    InstructionSet,
    instruction_set,
    instruction_set_files,
)
from tilesmith.search_space.hardware.target import Fact, Target, parse_facts
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.support.suggestions import did_you_mean

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_ASSUMED_THREADS, _ASSUMED_KIB, _ASSUMED_WAYS = 2, {1: 32, 2: 512, 3: 8192}, 8
_ASK_FOR_TILES = (158, 0x1023, 18)
"""arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) on x86-64."""
_VSCALE = """
target triple = "{triple}"
declare i64 @llvm.vscale.i64()
define i64 @vscale() {{
  %found = call i64 @llvm.vscale.i64()
  ret i64 %found
}}
"""


@cache
def host_target() -> Target:
    """This machine: name "cpu", family "cpu"."""
    import llvmlite.binding as llvm

    features, triple = host_features(), llvm.get_process_triple()
    chosen = host_instruction_set(triple, features)
    processor = description().processor or llvm.get_host_cpu_name()
    flat = llvm.FeatureMap(features).flatten()
    return cpu_target("cpu", chosen.name, triple, processor, _permitted(flat), here=True)


def host_features() -> dict[str, bool]:
    """Which of LLVM's features of processors this host has."""
    import llvmlite.binding as llvm

    return description().features(llvm.get_host_cpu_features())


def _permitted(features: str) -> str:
    """The features that this process may use: Linux grants AMX's registers to who asks (once), for
    the process's life (Documentation/arch/x86/xstate.rst)."""
    if "+amx-tile" not in features.split(","):
        return features
    if sys.platform == "linux" and not ctypes.CDLL(None).syscall(*_ASK_FOR_TILES):
        return features
    return ",".join(part for part in features.split(",") if not part.startswith("+amx-"))


def host_instruction_set(triple: str, features: Mapping[str, bool]) -> InstructionSet:
    """The first instruction set, in the order that they give themselves, that this host has.

    Args:
        triple, features: what LLVM says of the host.
    """
    return next(_had(triple, features))


def host_instruction_sets() -> tuple[str, ...]:
    """Names of all instruction sets that this host has, those first that it prefers."""
    import llvmlite.binding as llvm

    triple = llvm.get_process_triple()
    return tuple(instruction_set.name for instruction_set in _had(triple, host_features()))


def _had(triple: str, features: Mapping[str, bool]) -> Iterator[InstructionSet]:
    known = sorted(map(instruction_set, instruction_set_files), key=lambda s: s.host_order)
    for candidate in known:
        wanted = all(features.get(name) for name in candidate.host_features)
        if candidate.fits(triple) and wanted and has_length(candidate, triple):
            yield candidate


def has_length(wanted: InstructionSet, triple: str) -> bool:
    """Whether this host's vector registers, where they are scalable, suit an instruction set.

    The host must have scalable registers at all: asking one that has not ends the process.
    """
    if not wanted.vscale_bytes:
        return True
    vector_bytes = _vscale(triple, wanted.features) * wanted.vscale_bytes
    return wanted.vector_bytes <= vector_bytes <= wanted.longest


@cache
def _vscale(triple: str, features: str) -> int:
    """LLVM's `vscale` on this host, by running it."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(triple).create_target_machine(features=features)
    jit = llvm.create_lljit_compiler(machine, use_jit_link=True, suppress_errors=False)
    builder = llvm.JITLibraryBuilder().add_ir(_VSCALE.format(triple=triple))
    library = builder.export_symbol("vscale").link(jit, "vscale")
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(library["vscale"])())


def cpu_target(
    name: str,
    isa: str,
    triple: str,
    processor: str = "generic",
    features: str | None = None,
    *,
    here: bool = False,
) -> Target:
    """A CPU described by its vector instruction set.

    Args:
        isa: name of a shipped instruction set, or the path of a .toml file.
        triple: LLVM triple, e.g. "aarch64-unknown-linux-gnu".
        processor: LLVM processor name, for instruction scheduling.
        features: LLVM feature string; None means the least that `isa` implies.
        here: it is this machine: its caches and threads are read, not assumed.

    Raises:
        TargetError: nobody knows the instruction set.
    """
    chosen = instruction_set(isa)
    assumed, sets = "assumed", "instruction set"
    facts = {
        "isa.name": Fact(isa, "LLVM", "V"),
        "isa.triple": Fact(triple, "LLVM", "V"),
        "isa.processor": Fact(processor, "LLVM", "V"),
        "isa.features": Fact(chosen.features if features is None else features, "LLVM", "V"),
        "vector.bytes": Fact(chosen.vector_bytes, sets, "V", "bytes", minimum=4, maximum=8192),
        "vector.registers": Fact(chosen.vector_registers, sets, "V", minimum=4, maximum=128),
        "threads": Fact(_ASSUMED_THREADS, assumed, minimum=1, maximum=1024),
        "line.bytes": Fact(64, assumed, minimum=16, maximum=256),
        "fma.ports": Fact(2, assumed, minimum=1, maximum=8),
        "fma.latency": Fact(4, assumed, unit="cycles", minimum=1, maximum=32),
        "load.ports": Fact(2, assumed, minimum=1, maximum=8),
        "issue.width": Fact(8, assumed, unit="operations/cycle", minimum=1, maximum=32),
        "reorder.buffer": Fact(450, assumed, unit="operations", minimum=16, maximum=4096),
    }
    for level, kib in _ASSUMED_KIB.items():
        facts[f"l{level}.kib"] = Fact(kib, assumed, unit="KiB", minimum=1, maximum=1 << 22)
        facts[f"l{level}.ways"] = Fact(_ASSUMED_WAYS, assumed, minimum=1, maximum=1024)
    if here:
        facts = description().facts(facts | {n: _read(facts[n], v) for n, v in _seen().items()})
    return Target.of(name, "cpu", facts, f"{processor} with {isa} vectors")


def _read(fact: Fact, value: int) -> Fact:
    return replace(fact, value=value, source="operating system", trust="V")


def _seen() -> dict[str, int]:
    """What the operating system tells of this machine."""
    counts = {"threads": os.cpu_count() or 1}
    for level in _ASSUMED_KIB:
        counts[f"l{level}.kib"], counts[f"l{level}.ways"] = _cache(level)
    return counts


def _cache(level: int) -> tuple[int, int]:
    """(KiB, ways) of a data cache level as the operating system reports it."""
    for folder in sorted(_CACHES.glob("index*")):
        try:
            if int((folder / "level").read_text()) != level:
                continue
            if (folder / "type").read_text().strip() == "Instruction":
                continue
            size = (folder / "size").read_text().strip()
            ways = int((folder / "ways_of_associativity").read_text())
        except (OSError, ValueError):
            continue
        scale = 1024 if size.endswith("M") else 1
        return int(size.rstrip("KM")) * scale, max(1, ways)
    return _ASSUMED_KIB[level], _ASSUMED_WAYS


def narrowed(target: Target, isa: str) -> Target:
    """A CPU with another instruction set, and the vectors and features that go with it.

    One of another architecture is that architecture's plainest processor.
    """
    try:
        chosen = instruction_set(str(Path(isa).resolve()) if isa.endswith(".toml") else isa)
    except TargetError as error:
        raise TargetError(f"target '{target.name}': {error}") from error
    triple, processor = target.text("isa.triple"), target.text("isa.processor")
    if not chosen.fits(triple) or not chosen.architectures:
        triple, processor = chosen.triple or triple, "generic"
    plain = cpu_target(target.name, chosen.name, triple, processor)
    kept = {name: fact for name, fact in target.facts if name in plain and not fact.calibratable
            and not name.startswith(("isa.", "vector."))}  # fmt: skip
    return Target.of(plain.name, plain.family, dict(plain.facts) | kept, plain.doc)


ENVIRONMENT = "TILESMITH_CPU"


@dataclass(frozen=True)
class HostDescription:
    """What a file says; without one nothing."""

    file: str = ""
    processor: str = ""
    without: tuple[str, ...] = ()
    stated: tuple[tuple[str, Fact], ...] = ()

    def features(self, known: Mapping[str, bool]) -> dict[str, bool]:
        """What LLVM says of the host, without what the file takes away."""
        return {name: had and not self._lacks(name) for name, had in known.items()}

    def _lacks(self, feature: str) -> bool:
        return any(fnmatchcase(feature, pattern) for pattern in self.without)

    def facts(self, known: Mapping[str, Fact]) -> dict[str, Fact]:
        """The facts of a CPU, those that the file states in place of what was read.

        Raises:
            TargetError: it states a fact that CPUs do not have, or that follows from the features.
        """
        allowed = [name for name in known if not name.startswith(("isa.", "vector."))]
        changed = dict(known)
        for name, fact in self.stated:
            if name not in allowed:
                raise TargetError(
                    f"{ENVIRONMENT}: '{self.file}' states '{name}'; 'processor', 'without' and "
                    f"{', '.join(allowed)} are allowed{did_you_mean(name, allowed)}"
                )
            if type(fact.value) is not type(known[name].value):
                raise TargetError(
                    f"{ENVIRONMENT}: '{self.file}': {name} = {fact.value!r} is not of type "
                    f"{type(known[name].value).__name__}"
                )
            changed[name] = replace(known[name], value=fact.value, source=self.file)
        return changed


def description() -> HostDescription:
    """What the environment's file says; `TargetError` if it cannot be read."""
    return _description(os.environ.get(ENVIRONMENT, ""))


@cache
def _description(file: str) -> HostDescription:
    if not file:
        return HostDescription()
    try:
        table = tomllib.loads(Path(file).read_text())
    except OSError as error:
        raise TargetError(f"{ENVIRONMENT}: '{file}' cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise TargetError(f"{ENVIRONMENT}: '{file}' is not valid TOML: {error}") from error
    processor, without = table.pop("processor", ""), table.pop("without", [])
    if not isinstance(processor, str):
        raise TargetError(f"{ENVIRONMENT}: '{file}': processor = {processor!r} is no text")
    if not isinstance(without, list) or not all(isinstance(one, str) for one in without):
        raise TargetError(f"{ENVIRONMENT}: '{file}': without = {without!r} is no list of texts")
    return HostDescription(file, processor, tuple(without), tuple(parse_facts(file, table).items()))
