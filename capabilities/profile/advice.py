"""What to try, from a profile: each piece says what a run spends on it, the largest first.

A database may know a profile's untuned workloads under other conditions: on other machines, or with
other thread counts.
"""

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilesmith.capabilities.profile.report import Advice, OperatorTime, ProfileReport, rounded
from tilesmith.jobs.requests.request import Request
from tilesmith.jobs.subjects.subject import is_artifact, subject_words
from tilesmith.records.schema.urls import without_password
from tilesmith.search_space.hardware.target import HOST, Target
from tilesmith.search_space.results.origin import Origin, counted

if TYPE_CHECKING:
    from tilesmith.records.trials.record import Best


MATTERS = 0.02
"""Share of a run from which something is worth saying."""

_SMALL_US = 1000.0
"""A run that is shorter may be little beside its call, which takes tens of microseconds; of longer
ones the difference is what the machine did meanwhile."""

_EACH = 150
"""Trials for each workload that is to be tuned."""


def advised(
    report: ProfileReport, request: Request, target: Target, source: str
) -> tuple[Advice, ...]:
    """What to try.

    Args:
        target: what the model was compiled for.
        source: the file that an artifact was made of, as `Executable.source`.
    """
    advices = [
        *_untuned(report, request, source),
        *_elsewhere(report, request, target, source),
        *_conversions(report),
        *_host(report),
        *_waits(report),
        *_python(report),
    ]
    matter = [advice for advice in advices if advice.us >= MATTERS * report.total_us]
    matter.sort(key=lambda advice: -advice.us)
    return tuple(matter or _nothing(report))


def _untuned(report: ProfileReport, request: Request, source: str) -> list[Advice]:
    """Schedules that were never looked for, or are of something else."""
    advices = []
    for origin, kind in (
        (Origin.UNMEASURED, "tune"),
        (Origin.MEASURED, "tune"),
        (Origin.NEIGHBOUR, "transferred"),
        (Origin.ELSEWHERE, "transferred"),
        (Origin.STALE, "transferred"),
    ):
        ops = [op for op in report.ops if op.origin == origin and op.kind == "kernel"]
        if not ops:
            continue
        spent, gain = sum(op.us for op in ops), sum(op.gain_us for op in ops)
        names = _slowest(ops)
        workloads = list(dict.fromkeys(op.workload for op in sorted(ops, key=lambda o: -o.gain_us)))
        advices.append(
            Advice(
                kind,
                f"{_counted(ops, 'operator')} ({_counted(workloads, 'workload')}) {origin}, "
                f"{origin.meaning}: "
                f"{rounded(spent)} us, {spent / report.total_us:.0%} of a run, {rounded(gain)} us "
                f"above what arithmetic and memory need; the slowest: {names}",
                gain,
                tune_command(request, report, source, workloads),
            )
        )
    return advices


def _elsewhere(
    report: ProfileReport, request: Request, target: Target, source: str
) -> list[Advice]:
    """Schedules that the database has, but not for this machine or number of threads."""
    ops = [op for op in report.ops if op.origin in TAKEN and op.workload]
    command = tune_command(request, report, source, list({op.workload for op in ops}))
    database = None if request.database is None else str(request.database)
    return tuned_elsewhere(report, target, database, command)


def tune_command(
    request: Request, report: ProfileReport, source: str, workloads: Sequence[str]
) -> str:
    """What tunes the model (an artifact's own, as the artifact is); passwords are left out."""
    words, precision = ["tilesmith", "tune"], request.precision
    target = str(getattr(request.target, "name", request.target))
    if is_artifact(request.subject):
        words.append(source.rpartition(" ")[0] or "MODEL.onnx")
        target, precision = report.target, report.precision
    else:
        words += subject_words(request.subject)
    for name, shape in (request.shapes or {}).items():
        extents = ("..".join(map(str, e)) if isinstance(e, tuple) else str(e) for e in shape)
        words += ["--shape", f"{name}={'x'.join(extents)}"]
    words += ["--target", target] if target != HOST else []
    for name, value in (request.settings or {}).items():
        words += ["--set", f"{name}={value}"]
    words += ["--precision", precision] if precision != "fp32" else []
    words += ["--threads", str(report.threads)] if report.threads != 1 else []
    database = str(request.database) if request.database else "tuning.db"
    words += ["--database", without_password(database)]
    return shlex.join([*words, "--trials", str(_EACH * max(1, len(workloads)))])


def _counted(items: Sequence[object], name: str) -> str:
    return f"{len(items)} {name}{'s' if len(items) != 1 else ''}"


def _slowest(ops: Sequence[OperatorTime], most: int = 3) -> str:
    slow = sorted(ops, key=lambda op: -op.gain_us)[:most]
    return ", ".join(f"{op.label} ({rounded(op.us)} us)" for op in slow)


def _conversions(report: ProfileReport) -> list[Advice]:
    ops = [op for op in report.ops if op.kind == "conversion"]
    if not ops:
        return []
    spent = sum(op.us for op in ops)
    return [
        Advice(
            "conversions",
            f"{_counted(ops, 'conversion')} between layouts: {rounded(spent)} us, "
            f"{spent / report.total_us:.0%} of a run ({_slowest(ops)}); tuned as a whole model, "
            "kernels and layouts are chosen together",
            spent,
        )
    ]


def _host(report: ProfileReport) -> list[Advice]:
    ops = [op for op in report.ops if op.kind == "host"]
    if not ops:
        return []
    spent = sum(op.us for op in ops)
    islands = _islands(report.ops)
    kinds = ", ".join(dict.fromkeys(op.operator for op in ops))
    return [
        Advice(
            "host",
            f"{_counted(ops, 'operator')} on the host, in {islands} "
            f"{'places' if islands > 1 else 'place'} between native code: {rounded(spent)} us, "
            f"{spent / report.total_us:.0%} of a run: {kinds}; 'tilesmith operators' lists what "
            "has kernels",
            spent,
        )
    ]


def _islands(ops: Sequence[OperatorTime]) -> int:
    """Runs of host operators."""
    count, before = 0, ""
    for op in ops:
        count += op.kind == "host" and before != "host"
        before = op.kind
    return count


def _waits(report: ProfileReport) -> list[Advice]:
    if report.threads < 2:
        return []
    spent = report.wait_us
    slow = sorted(report.ops, key=lambda op: -op.wait_us)[:3]
    names = ", ".join(f"{op.label} ({rounded(op.wait_us)} us)" for op in slow)
    return [
        Advice(
            "waits",
            f"threads wait for each other {rounded(spent)} us of a run, mostly at the end of "
            f"{names}; tune with --threads {report.threads}, or run with fewer threads",
            spent,
        )
    ]


def _python(report: ProfileReport) -> list[Advice]:
    spent = report.call_us - report.plain_us
    small = report.measured_by == "hardware" and report.plain_us < _SMALL_US
    if not small or spent <= 0:
        return []
    return [
        Advice(
            "python",
            f"a call of the model takes {rounded(spent)} us besides, to check and copy inputs and "
            "outputs; runs of a model this small are best done many at a time, in a larger batch",
            spent if spent > 0.1 * report.plain_us else 0.0,
        )
    ]


def _nothing(report: ProfileReport) -> list[Advice]:
    near = sum(op.us for op in report.ops if op.gain_us < 0.25 * op.us)
    share = near / max(report.total_us, 1e-9)
    weighty = [op for op in report.ops if op.origin and op.us >= MATTERS * report.total_us]
    origins = Counter(op.origin for op in weighty)
    return [
        Advice(
            "roofline",
            f"nothing stands out: schedules of what has weight are {counted(origins)}, and "
            f"{share:.0%} of a run is within a third of what arithmetic and memory need; "
            "--precision bf16 or int8, and more threads, are what is left",
            near,
        )
    ]


TAKEN = (Origin.UNMEASURED, Origin.ELSEWHERE, Origin.NEIGHBOUR)
"""Origins of schedules that have no record of their own."""

_MOST = 200
"""Workloads looked up, those that may gain most."""


def tuned_elsewhere(
    report: ProfileReport, target: Target, database: str | None, command: str
) -> list[Advice]:
    """Operators whose schedules were looked for, but on another machine or number of threads.

    Args:
        command: what tunes them here.
    """
    ops = [op for op in report.ops if op.origin in TAKEN and op.workload]
    ops.sort(key=lambda op: -op.gain_us)
    keys = list(dict.fromkeys(op.workload for op in ops))[:_MOST]
    if database is None or not keys:
        return []
    from tilesmith.records.database import Database

    with Database.open(database, create=False) as opened:
        bests = opened.overview(workloads=keys)
    own = [best for best in bests if best.record.target_identity == target.identity]
    others = [best for best in bests if best.record.target_identity != target.identity]
    return [
        *_advice(ops, own, "for other thread counts", _threads(own), command),
        *_advice(ops, others, "on other machines", _machines(others), command),
    ]


def _advice(
    ops: list[OperatorTime], bests: "list[Best]", where: str, which: str, command: str
) -> list[Advice]:
    keys = {best.record.workload_key for best in bests}
    mine = [op for op in ops if op.workload in keys]
    if not mine:
        return []
    names = ", ".join(f"{op.label} ({rounded(op.us)} us)" for op in mine[:3])
    text = (
        f"the database has {len(keys)} of the untuned workloads {where} ({which}): {names}; a "
        "search here starts from what was best there"
    )
    return [Advice("elsewhere", text, sum(op.us for op in mine), command)]


def _threads(bests: "list[Best]") -> str:
    counts = Counter(best.record.threads for best in bests)
    return ", ".join(f"{count} for {threads}" for threads, count in sorted(counts.items()))


def _machines(bests: "list[Best]") -> str:
    counts = Counter(best.record.target_identity for best in bests)
    return ", ".join(f"{count} on {name}" for name, count in counts.most_common(3))
