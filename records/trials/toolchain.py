"""`Toolchain`: which versions produced a measurement, and whether it may still be believed.

A record's *identity* (workload, target, threads, configuration, way of measuring) says what was
tried; its *validity* says whether trying it again would give the same. The two are kept apart: a
new version of the simulator or of the code generator leaves every key as it is, and makes older
records *stale*, with the reason in words. Stale records are reported, re-measured and replaced,
never silently believed and never thrown away.

Invariant: a version that is unknown on this side (an empty text) is not judged.
"""

import hashlib
import json
from dataclasses import dataclass, fields
from functools import lru_cache

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results import versions
from tilesmith.search_space.results.measure import MeasuredBy

_DECISIVE: dict[MeasuredBy, tuple[str, ...]] = {
    "hardware": ("space", "codegen", "llvm"),
    "simulator": ("space", "simulator"),
}
"""The versions that decide whether a measurement still holds, by who measured it."""


@dataclass(frozen=True)
class Toolchain:
    """Versions behind a measurement, as texts; an empty text means unknown.

    Attributes:
        tilesmith: version of the product (for people; it decides nothing).
        llvm: version of llvmlite, which brings LLVM with it.
        codegen: version of our code generator; changes when generated code does.
        simulator: version of the simulators; changes when their latencies do.
        space: version of templates and lowering; changes when a configuration's meaning does.
        schema: revision of the database schema the record was first written with (for people).
    """

    tilesmith: str = ""
    llvm: str = ""
    codegen: str = ""
    simulator: str = ""
    space: str = ""
    schema: str = ""

    @classmethod
    def installed(cls) -> "Toolchain":
        """The versions of this installation."""
        return cls(
            _version("tilesmith"),
            _version("llvmlite"),
            versions.CODEGEN,
            versions.SIMULATOR,
            versions.SPACE,
        )

    def stale_because(self, current: "Toolchain", measured_by: MeasuredBy) -> tuple[str, ...]:
        """Why a record of this toolchain is stale under `current`, in phrases; () if it is not."""
        reasons = []
        for name in _DECISIVE[measured_by]:
            then, now = getattr(self, name), getattr(current, name)
            if now and then != now:
                reasons.append(f"{name} was {then or 'unknown'}, is {now}")
        return tuple(reasons)

    def to_dict(self) -> dict[str, str]:
        """The known versions by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name)}


@lru_cache
def _version(distribution: str) -> str:
    from importlib import metadata  # it takes longer than all else here

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def calibration_of(target: Target) -> str:
    """A digest of the facts that calibration may change (eight hexadecimal digits; "" if none).

    A target's identity leaves these facts out, so that keys are stable; simulated latencies depend
    on them, so that a simulated record carries this digest beside the identity.
    """
    fitted = {name: fact.value for name, fact in target.facts if fact.calibratable}
    if not fitted:
        return ""
    return hashlib.sha256(json.dumps(fitted, sort_keys=True).encode()).hexdigest()[:8]
