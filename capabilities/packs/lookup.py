"""What the compiler asks of a database, answered by packs where the database knows nothing.

A pack knows a machine *exactly* (the same identity), or its *kind* (the same processor and
instruction set; threads or a shared cache may differ), or no more than its *instruction set*. In
this order:

- schedules of the exact machine count as if they were on record here;
- those of its kind, which hardware timed, likewise, but are said to be of another machine;
- those of its instruction set have to beat the untuned default by the estimate for this machine;
  so have schedules that a simulator alone has judged, of machines that can be timed;
- last those of the nearest shape, near ones alone, which have to beat it, too.

Invariants: what a search on record here found is never overruled; a schedule is used only if it is
legal in its workload's space on this machine (`compiler.settling.chooser`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from tilesmith.capabilities.packs.pack import Pack, PackedMachine, PackedSchedule
from tilesmith.codegen.programs.structures import default_of
from tilesmith.compiler.backends.recorded import BestRecord, RecordedConfig, Records
from tilesmith.records.questions.likeness import distance, unlikeness
from tilesmith.records.trials.toolchain import Toolchain
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

_NEAR = math.log(2.0)
"""How far the shapes of another workload may be from one's own, all extents together."""

_NEAREST = 2
"""Schedules of other shapes that are offered."""

LayoutBests = dict[str, dict[tuple[str, str], BestRecord]]


class MachineKinship(IntEnum):
    """How near a pack's machine is to the one compiled for; the nearer the less."""

    EXACT = 0
    KIND = 1
    INSTRUCTIONS = 2


def kinship(target: Target, machine: Target) -> MachineKinship | None:
    """What a pack's machine has in common with a target; None: nothing that matters."""
    if machine.identity == target.identity:
        return MachineKinship.EXACT
    if machine.family != target.family or not ("isa.name" in target and "isa.name" in machine):
        return None
    if machine.text("isa.name") != target.text("isa.name"):
        return None
    same = all(
        name in machine and machine.fact(name).value == target.fact(name).value
        for name in ("isa.processor", "vector.bytes", "l1.kib", "l2.kib")
        if name in target
    )
    return MachineKinship.KIND if same else MachineKinship.INSTRUCTIONS


@dataclass(frozen=True)
class OfferedSchedule:
    """A schedule of a pack, as the compiler takes bests of a database.

    Attributes:
        schedule: the pack's.
        origin: how it was found, as seen from the machine compiled for.
        stale_because: as of `Best`.
    """

    schedule: PackedSchedule
    origin: Origin
    stale_because: tuple[str, ...] = ()

    @property
    def record(self) -> RecordedConfig:
        return self.schedule.record

    @property
    def stale(self) -> bool:
        return bool(self.stale_because)

    @property
    def latency(self) -> float:
        return self.schedule.latency


class PackRecords:
    """`Records` of a database, or of none, and of packs beside it.

    Args:
        database: asked first; None: packs alone.
        packs: the first that knows a workload is asked.
        target: compiled for.
    """

    def __init__(self, database: Records | None, packs: Sequence[Pack], target: Target) -> None:
        self._database = database
        self._packs = packs
        self._target = target
        self._toolchain = Toolchain.installed()

    @cached_property
    def _kin(self) -> dict[str, tuple[MachineKinship, float]]:
        """MachineKinship and unlikeness of every machine that has any."""
        machines = {m.identity: m for pack in self._packs for m in pack.machines}
        near = {name: kinship(self._target, one.target) for name, one in machines.items()}
        return {
            name: (kin, self._unlikeness(machines[name]))
            for name, kin in near.items()
            if kin is not None
        }

    def _unlikeness(self, machine: PackedMachine) -> float:
        return unlikeness(self._target, machine.target.to_json())

    @property
    def knows_the_machine(self) -> bool:
        """Whether any pack has schedules for such a machine."""
        return bool(self._kin)

    def of_workload(self, key: str, threads: int) -> list[PackedSchedule]:
        """A workload's schedules for such a machine, the nearest machine's first."""
        return [one for one, _ in self._ranked(key, threads)]

    # -- Records ----------------------------------------------------------------------------------
    def layout_bests(
        self, workloads: Iterable[Workload | str], target: Target | str, threads: int | None = 1
    ) -> LayoutBests:
        """The database's, and those of packs for workloads that it has no search of."""
        keys = [w if isinstance(w, str) else w.key for w in workloads]
        bests: LayoutBests = {}
        if self._database is not None:
            known = self._database.layout_bests(keys, target, threads)
            bests = {key: dict(pairs) for key, pairs in known.items()}
        packed = {key: pairs for key in keys if (pairs := self._own(key, threads))}
        both = [key for key in packed if key in bests]
        searched = self._searched(bests, both)
        return {**bests, **{key: p for key, p in packed.items() if key not in searched}}

    def nearest(
        self, workload: Workload, target: Target | str, threads: int | None = None
    ) -> Iterable[BestRecord]:
        """The database's alone; packs' are `elsewhere`, for they have to beat the default."""
        return () if self._database is None else self._database.nearest(workload, target, threads)

    def elsewhere(self, workload: Workload, target: Target, threads: int) -> list[BestRecord]:
        """The database's, then those of packs: this workload's, then those of near shapes."""
        bests: list[BestRecord] = []
        if self._database is not None:
            bests += self._database.elsewhere(workload, target, threads)
        offered = self.of_workload(workload.key, threads)
        if not offered:
            offered = self._of_near_shapes(workload, threads)
        return [*bests, *(OfferedSchedule(one, Origin.SEARCHED) for one in offered)]

    def origins(self, bests: Sequence[Any]) -> list[Origin]:
        """How each was found, whoever has it."""
        asked = [best for best in bests if not isinstance(best, OfferedSchedule)]
        theirs = iter(() if self._database is None else self._database.origins(asked))
        return [b.origin if isinstance(b, OfferedSchedule) else next(theirs) for b in bests]

    def top(
        self,
        workload: Workload | str,
        target: Target | str | None = None,
        *,
        threads: int | None = None,
        limit: int = 10,
    ) -> Iterable[RecordedConfig]:
        """The database's alone: a pack has bests only."""
        if self._database is None:
            return ()
        return self._database.top(workload, target, threads=threads, limit=limit)

    # -- packs ------------------------------------------------------------------------------------
    def _own(self, key: str, threads: int | None) -> dict[tuple[str, str], BestRecord]:
        """Schedules of a workload that count as measured here, by layouts: of one machine all."""
        ranked = self._ranked(key, threads)
        believed = [(one, kin) for one, kin in ranked if self._is_believed(one, kin)]
        if not believed:
            return {}
        first, nearest = believed[0][0].record, believed[0][1]
        pairs: dict[tuple[str, str], BestRecord] = {}
        for one, _ in believed:
            same = one.record.target_identity == first.target_identity
            if same and one.record.threads == first.threads:
                pairs.setdefault(one.record.layouts, self._offered(one, nearest))
        return pairs

    def _is_believed(self, one: PackedSchedule, kin: MachineKinship) -> bool:
        """Whether its latency is one of this machine, or of one of its kind."""
        timed = one.record.result.measured_by == "hardware" or "isa.name" not in self._target
        return timed and kin <= MachineKinship.KIND

    def _offered(self, one: PackedSchedule, kin: MachineKinship) -> OfferedSchedule:
        record = one.record
        way = record.result.measured_by
        because = (record.toolchain or Toolchain()).stale_because(self._toolchain, way)
        if kin is not MachineKinship.EXACT:
            return OfferedSchedule(one, Origin.ELSEWHERE, because)
        return OfferedSchedule(one, Origin.STALE if because else one.origin, because)

    def _ranked(self, key: str, threads: int | None) -> list[tuple[PackedSchedule, MachineKinship]]:
        """A workload's schedules with so many threads (or any), the nearest machine's first."""
        ranked = []
        for place, pack in enumerate(self._packs):
            for one in pack.by_workload.get(key, ()):
                kin = self._kin.get(one.record.target_identity)
                if kin is not None and threads in (None, one.record.threads):
                    simulated = one.record.result.measured_by != "hardware"
                    ranked.append((kin[0], simulated, kin[1], place, one.latency, one.key, one))
        return [(entry[-1], entry[0]) for entry in sorted(ranked, key=lambda entry: entry[:-1])]

    def _of_near_shapes(self, workload: Workload, threads: int) -> list[PackedSchedule]:
        """Schedules of the nearest shapes on machines of this kind, in the layouts that the default
        has: what a shape gains in others says little of what conversions to them cost here."""
        near: list[tuple[float, str]] = []
        for pack in self._packs:
            for key in pack.by_workload:
                if key.split(" ", 1)[0] == workload.operator and key != workload.key:
                    far = distance(workload, key)
                    if far <= _NEAR:
                        near.append((far, key))
        schedules: list[PackedSchedule] = []
        usual = template_of(workload.operator).layouts(workload, default_of(workload, self._target))
        for _, key in sorted(set(near)):
            ranked = [one for one, kin in self._ranked(key, threads) if kin <= MachineKinship.KIND]
            schedules += [one for one in ranked if one.record.layouts == usual][:1]
        return schedules[:_NEAREST]

    def _searched(self, bests: LayoutBests, keys: Sequence[str]) -> set[str]:
        """Those of the workloads whose bests in the database are of a search."""
        if not keys or self._database is None:
            return set()
        firsts = [min(bests[key].values(), key=lambda best: best.latency) for key in keys]
        origins = self._database.origins(firsts)
        return {key for key, origin in zip(keys, origins, strict=True) if origin.is_tuned}
