"""What a record stands for: its loop IR, the code made of it, and its latency measured anew.

`tilesmith db show` and `tilesmith db verify` come here; the database itself knows no code. A record
is brought back to life from its texts, so that everything here can fail for a record of another
installation: an operator or a target that is unknown now, a configuration outside today's space.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from tilesmith.search_space.hardware.target import HOST, Target
from tilesmith.search_space.support.errors import InputError

if TYPE_CHECKING:
    from tilesmith.records import Database, TuningRecord
    from tilesmith.search_space.ir.program import Program
    from tilesmith.tuner.measurement.runner import Runner


OPTIONS = {"llvm": "LLVM IR", "assembly": "assembly", "instructions": "instruction stream"}
"""Languages of code by the names that options and addresses have for them."""


def target_of(database: "Database", identity: str) -> Target:
    """The hardware of a record: as the database describes it, else as it is known here.

    Raises:
        TargetError: the database has no description, and no target of that name is known.
        InputError: the target of that name is another one by now.
    """
    from tilesmith.jobs.subjects.targets import resolve_target

    described = database.target_facts(identity)
    if described is not None:
        return described
    target = resolve_target(identity.rpartition("-")[0])
    if target.identity != identity:
        raise InputError(
            f"the database does not describe target '{identity}', and '{target.name}' here is "
            f"'{target.identity}'"
        )
    return target


def program_text(record: "TuningRecord", target: Target) -> str:
    """The lowered, bound program (loop IR) of a record."""
    from tilesmith.search_space.ir.program import print_program

    return print_program(_program(record, target))


def llvm_text(record: "TuningRecord", target: Target) -> str:
    """The LLVM IR generated for a record on a CPU, before LLVM's own passes."""
    return _listing(record, target, "LLVM IR")


def assembly_text(record: "TuningRecord", target: Target) -> str:
    """The assembly of a record on a CPU, as optimised for its processor."""
    return _listing(record, target, "assembly")


def instructions_text(record: "TuningRecord", target: Target) -> str:
    """The instruction stream of a record on an accelerator, as it is timed."""
    return _listing(record, target, "instruction stream")


def remeasure(database: "Database", records: "Sequence[TuningRecord]") -> "list[TuningRecord]":
    """Each record measured again in its own way, with the versions installed now.

    Raises:
        InputError: a record was measured on hardware that is not this machine.
    """
    from tilesmith.records import TuningRecord

    renewed: dict[int, TuningRecord] = {}
    numbered = sorted(enumerate(records), key=lambda item: _runner_key(item[1]))
    for _, group in groupby(numbered, key=lambda item: _runner_key(item[1])):
        members = list(group)
        target = target_of(database, members[0][1].target_identity)
        runner = _runner(members[0][1], target)
        try:
            results = runner.measure([(record.workload, record.config) for _, record in members])
        finally:
            runner.close()
        for (number, record), result in zip(members, results, strict=True):
            renewed[number] = TuningRecord.of(
                record.workload, target, record.config, result, threads=record.threads
            )
    return [renewed[number] for number in range(len(records))]


def _runner_key(record: "TuningRecord") -> tuple[str, int, str]:
    return record.target_identity, record.threads, record.result.measured_by


def _runner(record: "TuningRecord", target: Target) -> "Runner":
    """What measures a record again."""
    from tilesmith.jobs.subjects.targets import resolve_target
    from tilesmith.simulator import judge
    from tilesmith.tuner.measurement.runner import RunnerOptions, runners

    measured_by = record.result.measured_by
    if measured_by == "hardware" and resolve_target(HOST).identity != record.target_identity:
        raise InputError(
            f"record {record.id} was measured on '{record.target_identity}', which is not this "
            "machine; name a target with --target"
        )
    return runners[measured_by](RunnerOptions(target, threads=record.threads, judge=judge))


def _program(record: "TuningRecord", target: Target) -> "Program":
    from tilesmith.codegen.programs.structures import lowered

    return lowered(record.workload, target, record.config)


def _listing(record: "TuningRecord", target: Target, language: str) -> str:
    from tilesmith.compiler.backends.backend import backends

    known = backends[target.family].listings if target.family in backends else {}
    if language not in known:
        raise InputError(
            f"target '{target.name}' is of family '{target.family}' and has no {language}; there "
            f"is {', '.join(('loop IR (--program)', *map(_with_option, known)))}"
        )
    return known[language](record.workload, target, record.config)


def _with_option(language: str) -> str:
    option = next((f" (--{name})" for name, spoken in OPTIONS.items() if spoken == language), "")
    return f"{language}{option}"
