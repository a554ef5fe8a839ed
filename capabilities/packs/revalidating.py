"""The job `pack revalidate`: this machine, what times kernels on it, and the database, if any."""

from collections.abc import Sequence
from contextlib import ExitStack

from tilesmith.capabilities.packs.pack import Pack
from tilesmith.capabilities.packs.revalidation import Trialled, proven, trialled
from tilesmith.jobs.notices import LOG
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.records.database import Database
from tilesmith.search_space.hardware.target import HOST
from tilesmith.search_space.support.errors import InputError
from tilesmith.tuner.machines.identity import host_facts
from tilesmith.tuner.measurement.runner import RunnerOptions, runners


def revalidated(
    packs: Sequence[Pack], name: str, threads: int, database: str | None = None
) -> tuple[list[Trialled], Pack]:
    """What became of each workload, and the pack of what was kept.

    Args:
        name: of that pack.
        database: gets what was timed, workload by workload; made where there is none.

    Raises:
        InputError: packs know nothing for such a machine.
    """
    target = resolve_target(HOST)
    outcomes: list[Trialled] = []
    with ExitStack() as stack:
        opened = None
        if database is not None:
            opened = stack.enter_context(Database.open(database))
            opened.register_target(target)
        runner = runners["hardware"](RunnerOptions(target, threads=threads))
        stack.callback(runner.close)
        for done in trialled(packs, target, threads, runner):
            outcomes.append(done)
            LOG.info("%s: %s", done.workload.key, done.why or f"{done.kept} kept")
            if opened is not None:
                opened.add(done.records)
    if not outcomes:
        plural = "" if threads == 1 else "s"
        raise InputError(
            f"no pack has a schedule for '{target.identity}' or a machine of its instruction set "
            f"with {threads} thread{plural}; tilesmith pack show says what they hold"
        )
    return outcomes, proven(name, target, str(host_facts().get("model", "")), outcomes)
