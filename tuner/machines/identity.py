"""`Machine`: the computer that trials are measured on, as the record keeps it.

A target says what code is made for; many machines may be of one target. What a machine is beyond
that (processor model, cores, memory, kernel, microcode, governor, hardware threads) decides how far
its measurements can be believed, so it is kept beside them. A machine is found by its name, which
follows from its host name and its machine id (machine-id(5)), or is given by `ENVIRONMENT`, where
containers come and go. Facts that cannot be read are left out, never guessed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

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
    def from_json(cls, text: str) -> Machine:
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
