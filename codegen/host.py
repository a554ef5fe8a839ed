"""The CPU we sit on, as a target: instruction set, vector width, registers, caches, threads.

What the processor can do comes from LLVM, the caches from the operating system. Measured constants
(clock, bandwidths, latencies) are calibratable facts with sane defaults; `simulator.cpu` fits them.
`cpu_target` also describes CPUs we do not sit on, for cross-compilation.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from tilesmith.search_space.target import Fact, Target

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_DEFAULT_KIB = {1: 32, 2: 512, 3: 8192}

VECTOR_ISAS: dict[str, tuple[int, int]] = {
    "avx512": (16, 32),
    "avx2": (8, 16),
    "sse": (4, 16),
    "neon": (4, 32),
}
"""Vector instruction set: (float32 lanes, vector registers)."""

_FEATURES = {
    "avx512": "+avx512f,+avx512vl,+avx512dq,+avx512bw,+avx2,+fma",
    "avx2": "+avx2,+fma,-avx512f",
    "sse": "+sse4.2,-avx",
    "neon": "+neon",
}


@cache
def host_target() -> Target:
    """This machine: name "cpu", family "cpu"."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    triple = llvm.get_process_triple()
    if triple.startswith(("aarch64", "arm64")):
        isa = "neon"
    elif features.get("avx512f") and features.get("avx512vl"):
        isa = "avx512"
    elif features.get("avx2") and features.get("fma"):
        isa = "avx2"
    else:
        isa = "sse"
    return cpu_target("cpu", isa, triple, llvm.get_host_cpu_name(), features.flatten())


def cpu_target(
    name: str, isa: str, triple: str, processor: str = "generic", features: str | None = None
) -> Target:
    """A CPU described by its vector instruction set.

    Args:
        isa: a key of `VECTOR_ISAS`.
        triple: LLVM triple, e.g. "aarch64-unknown-linux-gnu".
        processor: LLVM processor name, for instruction scheduling.
        features: LLVM feature string; None means the least that `isa` implies.
    """
    lanes, registers = VECTOR_ISAS[isa]
    read, assumed = "operating system", "assumed"
    facts = {
        "isa.name": Fact(isa, "LLVM", "V"),
        "isa.triple": Fact(triple, "LLVM", "V"),
        "isa.processor": Fact(processor, "LLVM", "V"),
        "isa.features": Fact(_FEATURES[isa] if features is None else features, "LLVM", "V"),
        "vector.lanes": Fact(lanes, "instruction set", "V", "float32", minimum=1, maximum=64),
        "vector.registers": Fact(registers, "instruction set", "V", minimum=4, maximum=128),
        "threads": Fact(os.cpu_count() or 1, read, "V", minimum=1, maximum=1024),
        "line.bytes": Fact(64, assumed, minimum=16, maximum=256),
        "fma.ports": Fact(2, assumed, minimum=1, maximum=8),
        "fma.latency": Fact(4, assumed, unit="cycles", minimum=1, maximum=32),
        "load.ports": Fact(2, assumed, minimum=1, maximum=8),
        "issue.width": Fact(8, assumed, unit="operations/cycle", minimum=1, maximum=32),
        "reorder.buffer": Fact(450, assumed, unit="operations", minimum=16, maximum=4096),
    }
    for level in (1, 2, 3):
        kib, ways = _cache(level)
        facts[f"l{level}.kib"] = Fact(kib, read, "V", "KiB", minimum=1, maximum=1 << 22)
        facts[f"l{level}.ways"] = Fact(ways, read, "V", minimum=1, maximum=1024)
    return Target.of(name, "cpu", facts, f"{processor} with {isa} vectors")


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
    return _DEFAULT_KIB[level], 8
