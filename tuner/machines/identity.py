"""`Machine`: the computer that trials are measured on, as the record keeps it.

A target says what code is made for; many machines may be of one target. What a machine is beyond
that (processor model, cores, memory, kernel, microcode, governor, hardware threads) decides how far
its measurements can be believed, so it is kept beside them. A machine is found by its name, which
follows from its host name and its machine id (machine-id(5)), or is given by `ENVIRONMENT`, where
containers come and go. Facts that cannot be read are left out, never guessed.

`unfit` says whether a machine can measure for a target: has it the instructions, and is it such a
machine? Code of instructions that a processor lacks ends its process (SIGILL), and latencies of
another processor say nothing of the one they would be kept under. Both are found out before any
trial, by comparing two descriptions: of the target, and of the machine as a target
(`codegen.host`).
"""

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tilesmith.search_space.hardware.instruction_set import instruction_set
from tilesmith.search_space.hardware.target import Target

ENVIRONMENT = "TILESMITH_MACHINE"
"""The machine's name in the record, in place of one made from host name and machine id."""

Facts = Mapping[str, str | int | float]


@dataclass(frozen=True)
class Machine:
    """See the module's docstring.

    Attributes:
        name: what it is called in the record; two machines never share one.
        host: its host name.
        identity: of the target that it is (`Target.identity`), "" if unknown.
        facts: by name: `model`, `cores`, `threads_per_core`, `memory_mib`, `kernel`, `microcode`,
            `governor`, `virtual`, as far as they can be read.
        calibration: its microbenchmarks by name, {} if none were taken.
    """

    name: str
    host: str
    identity: str = ""
    facts: Facts = field(default_factory=dict)
    calibration: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        """As one JSON object."""
        return json.dumps({**vars(self), "facts": dict(self.facts)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Machine":
        return cls(**json.loads(text))


def this_machine(target: Target | None = None) -> Machine:
    """The machine that this process runs on.

    Args:
        target: what it is as a target, with its calibration if that was taken; None: not asked.
    """
    if target is None:
        return Machine(machine_name(), platform.node(), facts=host_facts())
    calibration = {
        name: float(fact.value)
        for name, fact in target.facts
        if fact.calibratable and isinstance(fact.value, int | float)
    }
    return Machine(machine_name(), platform.node(), target.identity, host_facts(), calibration)


def machine_name() -> str:
    """The name of the machine that this process runs on: `box-3f9a1c`."""
    given = os.environ.get(ENVIRONMENT, "").strip()
    return given or _own_name()


@cache
def _own_name() -> str:
    host = platform.node() or "machine"
    digest = hashlib.sha256(f"{host}\0{_text(Path('/etc/machine-id'))}".encode()).hexdigest()
    return f"{host}-{digest[:6]}"


def host_facts(root: Path = Path("/")) -> dict[str, str | int | float]:
    """What can be read of a Linux machine; less elsewhere.

    Args:
        root: where /proc and /sys are.
    """
    cpu = _colons(root / "proc/cpuinfo")
    memory = _colons(root / "proc/meminfo").get("MemTotal", "").split()
    cores = root / "sys/devices/system/cpu"
    siblings = _text(cores / "cpu0/topology/thread_siblings_list")
    facts: dict[str, str | int | float] = {
        "model": cpu.get("model name") or cpu.get("Model") or platform.processor(),
        "cores": os.cpu_count() or 0,
        "threads_per_core": len(_numbers(siblings)),
        "memory_mib": int(memory[0]) // 1024 if memory and memory[0].isdigit() else 0,
        "kernel": f"{platform.system()} {platform.release()}",
        "microcode": cpu.get("microcode", ""),
        "governor": _text(cores / "cpu0/cpufreq/scaling_governor"),
        "virtual": "yes" if "hypervisor" in cpu.get("flags", "").split() else "",
    }
    return {name: value for name, value in facts.items() if value}


def _numbers(text: str) -> tuple[int, ...]:
    from tilesmith.tuner.machines.cores import parse_list

    try:
        return parse_list(text)
    except ValueError:
        return ()


def _colons(path: Path) -> dict[str, str]:
    """The first value of each key of a file of `key : value` lines."""
    values: dict[str, str] = {}
    for line in _text(path).splitlines():
        name, colon, value = line.partition(":")
        if colon:
            values.setdefault(name.strip(), value.strip())
    return values


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


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
