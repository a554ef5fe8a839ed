"""Whether a machine can measure for a target: has it the instructions, and is it such a machine?

Code of instructions that a processor lacks ends its process (SIGILL), and latencies of another
processor say nothing of the one they would be kept under. Both are found out before any trial, by
comparing two descriptions: of the target, and of the machine as a target (`codegen.host`).
"""

from __future__ import annotations

from tilesmith.search_space.hardware.instruction_set import instruction_set
from tilesmith.search_space.hardware.target import Target

_SAME = (
    "isa.processor", "line.bytes", "l1.kib", "l1.ways", "l2.kib", "l2.ways", "l3.kib", "l3.ways",
    "threads",
)  # fmt: skip
"""Facts that a machine shares with the targets it stands for, whichever of its instructions they
use."""


def unfit(target: Target, host: Target) -> str | None:
    """Why a machine cannot measure for a target, to follow its name in a sentence; None if it can.

    Args:
        host: the machine as a target.
    """
    return lacks_instructions(target, host) or is_another(target, host)


def lacks_instructions(target: Target, host: Target) -> str | None:
    """What the processor lacks to run code of the target, to follow the machine's name."""
    if target.family != host.family:
        return f"is of the family '{host.family}', not '{target.family}'"
    if "isa.name" not in target:
        return None
    name = target.text("isa.name")
    wanted, mine = target.text("isa.triple"), host.text("isa.triple")
    if _architecture(wanted) != _architecture(mine):
        return f"has no '{name}' instructions: it is {_architecture(mine)}"
    features = set(host.text("isa.features").split(","))
    needed = [part for part in target.text("isa.features").split(",") if part.startswith("+")]
    missing = [part.removeprefix("+") for part in needed if part not in features]
    if missing:
        return f"has no '{name}' instructions: it lacks {', '.join(missing[:4])}"
    length = instruction_set(name).vscale_bytes and target.integer("vector.bytes")
    if length and length > host.integer("vector.bytes"):
        width = host.integer("vector.bytes")
        return f"has vectors of {width} bytes, '{name}' of {length}"
    return None


def is_another(target: Target, host: Target) -> str | None:
    """How a machine differs from the one that a target describes, to follow its name."""
    for name in _SAME:
        if name not in target or name not in host:
            continue
        wanted, actual = target.fact(name).value, host.fact(name).value
        if wanted != actual:
            return f"is another machine: its {name} is {actual}, the target's {wanted}"
    return None


def _architecture(triple: str) -> str:
    first = triple.partition("-")[0]
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(first, first)
