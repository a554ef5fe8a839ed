"""Packs from databases: the best schedules that beat the untuned default, and nothing else.

A workload is packed where its best is faster than its default was, measured in the same way on
the same machine, by more than `WORTH`; then with its bests in other layouts, slower ones than the
default among them: between kernels what is best alone is not always best, and a layout that nobody
measured would be taken for a better or a worse one than it is. What another version measured is
left out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tilesmith.capabilities.packs.file_format import rounded
from tilesmith.capabilities.packs.pack import Pack, PackedMachine, PackedSchedule
from tilesmith.codegen.programs.structures import default_of
from tilesmith.records import Best, Database
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.support.errors import InputError, TilesmithError

WORTH = 1.02
"""How many times as fast as the default a schedule is that is packed: less is noise."""

WORTH_SIMULATED = 1.10
"""The same where a simulator alone has judged a machine that could be timed: its error is about
10 %."""

OTHER_LAYOUTS = 2.0
"""How far behind a workload's best its bests in other layouts may be: what is unknown of a layout
is assumed to be some 1.3 to 1.7 times as slow (`compiler.settling.chooser`)."""

_TRIALS = 100_000
"""Trials of a workload that its default is looked for among."""

Subject = tuple[str, str, int]


def pack_from(database: Database, name: str, *, target: str | None = None) -> Pack:
    """The schedules of a database that are worth packing.

    Args:
        name: of the pack.
        target: of this target alone (name or identity).

    Raises:
        InputError: nothing in it is.
    """
    bests = [best for best in database.overview(target=target) if _is_packable(best)]
    machines = _machines(database, {best.record.target_identity for best in bests})
    origins = dict(zip(map(_subject, bests), database.origins(bests), strict=True))
    schedules: list[PackedSchedule] = []
    for identity, machine in machines.items():
        for threads in sorted({best.record.threads for best in bests}):
            mine = [b for b in bests if _subject(b)[1:] == (identity, threads)]
            schedules += _of_machine(database, machine.target, mine, origins)
    if not schedules:
        raise InputError(
            f"no schedule in '{database.name}' beats its default by {WORTH - 1:.0%}, or none of a "
            "target that the database describes; tune more, or name another --target"
        )
    return Pack.of(name, machines.values(), schedules)


def merged(name: str, packs: Iterable[Pack]) -> Pack:
    """All schedules of several packs; of one workload on one machine the faster stays."""
    known = list(packs)
    machines = [machine for pack in known for machine in pack.machines]
    return Pack.of(name, machines, [one for pack in known for one in pack.schedules])


def _is_packable(best: Best) -> bool:
    return not best.stale and not best.record.is_of_model


def _subject(best: Best) -> Subject:
    return best.record.workload_key, best.record.target_identity, best.record.threads


def _of_machine(
    database: Database,
    target: Target,
    bests: Sequence[Best],
    origins: Mapping[Subject, Origin],
) -> Iterator[PackedSchedule]:
    """What is packed of bests on one machine, all with one number of threads."""
    if not bests:
        return
    threads = bests[0].record.threads
    keys = [best.record.workload_key for best in bests]
    pairs = database.layout_bests(keys, target.identity, threads)
    for best in bests:
        default_s = _default_s(database, target, best)
        if default_s is None or best.latency * _worth(best, target) > default_s:
            continue
        for one in pairs[best.record.workload_key].values():
            near = one.latency <= OTHER_LAYOUTS * best.latency
            if near and not one.stale:
                record = rounded(one.record)
                yield PackedSchedule(record, float(f"{default_s:.4g}"), origins[_subject(best)])


def _worth(best: Best, target: Target) -> float:
    """How many times as fast as its default a best has to be."""
    judged = best.record.result.measured_by == "simulator" and "isa.name" in target
    return WORTH_SIMULATED if judged else WORTH


def _default_s(database: Database, target: Target, best: Best) -> float | None:
    """Seconds of the default of a best's workload, measured as the best was."""
    record = best.record
    try:
        usual = default_of(record.workload, target)
    except TilesmithError:  # an operator of another installation
        return None
    trials = database.top(
        record.workload_key, target, threads=record.threads,
        measured_by=record.result.measured_by, limit=_TRIALS,
    )  # fmt: skip
    fresh = (one for one in trials if one.toolchain == record.toolchain)
    return next((one.latency for one in fresh if one.config == usual), None)


def _machines(database: Database, identities: Iterable[str]) -> dict[str, PackedMachine]:
    """Those that the database describes."""
    models: dict[str, str] = {}
    for machine in database.machines():
        models.setdefault(machine.target, str(machine.facts.get("model", "")))
    machines: dict[str, PackedMachine] = {}
    for identity in sorted(identities):
        target = database.target_facts(identity)
        if target is not None and target.identity == identity:
            machines[identity] = PackedMachine(target.uncalibrated, models.get(identity, ""))
    return machines
