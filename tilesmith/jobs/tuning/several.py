"""One job for several targets: a search for each, as exact as alone, where such machines are.

Every target has its own job in the database, its own series, and its own code for each candidate.
Targets whose machines are different ones are tuned at the same time; those that share machines, or
are simulated, one after the other, with an even share of the time that is left. A target that
nobody can measure is told before anything is.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from tilesmith.jobs.pools import cluster_of, hosts_of
from tilesmith.jobs.requests.request import TuneRequest
from tilesmith.jobs.tuning.job import TuningJob, run_job, status_of, tuning_job
from tilesmith.jobs.tuning.tune_reports import TuneReport
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.ending import exit_code
from tilesmith.search_space.support.errors import InputError, JobError, TargetError
from tilesmith.tuner.machines.identity import unfit
from tilesmith.tuner.session.progress import Progress
from tilesmith.tuner.tasks.cancel import CancelToken, cancel_on_signals

if TYPE_CHECKING:
    from tilesmith.jobs.pools import Cluster
    from tilesmith.jobs.tuning.heartbeat import Observer

Reports = dict[str, TuneReport]
"""By the target's identity, in the order asked for."""


class NotAllTuned(JobError):  # noqa: N818  (some were)
    """Some targets were not tuned to the end; `reports` are those that were."""

    def __init__(self, reports: Reports, message: str, stopped_by: str = "") -> None:
        super().__init__(message)
        self.reports = reports
        self.exit_code = exit_code(stopped_by)


def tune_for(
    request: TuneRequest,
    targets: Sequence[str | Target],
    started: float,
    observer: "Observer | None" = None,
    cancel: CancelToken | None = None,
) -> Reports:
    """Tune a subject for several targets.

    Args:
        request: the job; its own target is not used.
        started: when the caller asked (`time.monotonic`).

    Raises:
        InputError: as of one target's job; two targets that are the same.
        TargetError: nobody can measure one of them.
        NotAllTuned: a search ended early; the message says which and why.
    """
    jobs = [tuning_job(replace(request, target=target), started) for target in targets]
    _check_distinct(jobs)
    jobs = _left(jobs)
    token = cancel or CancelToken()
    with cancel_on_signals(token), cluster_of(jobs[0].workers) as cluster:
        groups = [list(jobs)]
        if cluster is not None and jobs[0].on_hardware:
            groups = apart(jobs, hosts_of(cluster, jobs[0].target, jobs[0].threads))
        run = _Several(cluster, _one_at_a_time(observer), token)
        if len(groups) == 1:
            run.group(groups[0])
        else:
            with token.shielded(), ThreadPoolExecutor(len(groups)) as pool:
                for begun in [pool.submit(run.group, group) for group in groups]:
                    begun.result()
    by_target = {job.target.identity: run.reports.get(job.target.identity) for job in jobs}
    reports = {identity: report for identity, report in by_target.items() if report is not None}
    if run.failures:
        failures = "; ".join(f"'{name}': {reason}" for name, reason in run.failures.items())
        raise NotAllTuned(
            reports,
            f"{len(run.failures)} of {len(jobs)} targets were not tuned to the end: {failures}",
            token.reason,
        )
    return reports


def apart(jobs: Sequence[TuningJob], hosts: Mapping[str, Target]) -> list[list[TuningJob]]:
    """Jobs in groups that share no machine.

    Args:
        hosts: the machines there are, as targets, by name.

    Raises:
        TargetError: none of them can measure for one of the targets; each is named with the reason.
    """
    groups: list[tuple[set[str], list[TuningJob]]] = []
    for job in jobs:
        reasons = {name: unfit(job.target, host) for name, host in hosts.items()}
        fit = {name for name, reason in reasons.items() if reason is None}
        if not fit:
            refusals = "; ".join(f"{name} {reason}" for name, reason in reasons.items())
            raise TargetError(
                f"no worker can measure for target '{job.target.identity}': "
                f"{refusals or 'there is none'}; leave it out, simulate it, or add such a machine"
            )
        joined = [group for group in groups if group[0] & fit]
        groups = [group for group in groups if not group[0] & fit]
        members = [one for group in joined for one in group[1]]
        groups.append((fit.union(*(group[0] for group in joined)), [*members, job]))
    return [members for _, members in groups]


class _Several:
    """Runs jobs and keeps what came of them."""

    def __init__(
        self, cluster: "Cluster | None", observer: "Observer | None", token: CancelToken
    ) -> None:
        self._cluster, self._observer, self._token = cluster, observer, token
        self.reports: Reports = {}
        self.failures: dict[str, str] = {}

    def group(self, jobs: Sequence[TuningJob]) -> None:
        """One after the other, until the token is set."""
        for number, job in enumerate(jobs):
            identity = job.target.identity
            if self._token.cancelled:
                self.failures[identity] = f"stopped by {self._token.reason} before it began"
                continue
            try:
                timed = _with_share(job, len(jobs) - number)
                self.reports[identity] = run_job(timed, self._observer, self._token, self._cluster)
            except JobError as error:
                self.failures[identity] = str(error)


def _with_share(job: TuningJob, left: int) -> TuningJob:
    """A job with its share of the time that is left for so many."""
    options = job.options
    if options.time_limit_s is None or left == 1:
        return job
    now = time.monotonic()
    gone = 0.0 if options.started is None else now - options.started
    share = max(1e-3, (options.time_limit_s - gone) / left)
    return replace(job, options=replace(options, time_limit_s=share, started=now))


def _check_distinct(jobs: Sequence[TuningJob]) -> None:
    seen: dict[str, str] = {}
    for job in jobs:
        identity = job.target.identity
        if identity in seen:
            raise InputError(
                f"the target '{job.target.name}' is named twice: '{identity}' is what both are"
            )
        seen[identity] = job.target.name


def _left(jobs: list[TuningJob]) -> list[TuningJob]:
    """Of jobs that are resumed, those that are not finished; all if all are."""
    if not jobs[0].resume:
        return jobs
    left = [job for job in jobs if status_of(job) != "finished"]
    return left or jobs


def _one_at_a_time(observer: "Observer | None") -> "Observer | None":
    """An observer that several threads may tell."""
    if observer is None:
        return None
    lock = threading.Lock()

    def tell(progress: Progress) -> None:
        with lock:
            observer(progress)

    return tell
