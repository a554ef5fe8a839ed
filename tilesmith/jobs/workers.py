"""Workers of a job: many processes or machines that do its trials, by Ray where it is asked for.

The only place outside `tuner.fleet` that knows of it; Ray is imported when a job has workers.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from tilesmith.jobs.extras import required
from tilesmith.jobs.notices import LOG
from tilesmith.search_space.errors import InputError
from tilesmith.search_space.target import Target
from tilesmith.tuner.fleet.places import ClusterLost, place_of
from tilesmith.tuner.fleet.settings import set_up_for
from tilesmith.tuner.runner import Runner

_RAYS = 3
T = TypeVar("T")

if TYPE_CHECKING:
    from tilesmith.tuner.fleet.cluster import Cluster
    from tilesmith.tuner.fleet.fleet import Fleet
    from tilesmith.tuner.model_corpus import Mapped


def check_workers(workers: str, measure: str) -> None:
    """Refuse what no job can do, before anything is started.

    Args:
        workers: what was asked for; "" for none.
        measure: how trials are measured.

    Raises:
        InputError: not understood, or there is nothing for workers to do.
        DependencyError: Ray is not installed.
    """
    if not workers:
        return
    place_of(workers)
    if measure == "replay":
        raise InputError("a replay looks results up, which needs no workers; leave --workers out")
    required("ray", extra="ray")


@contextmanager
def cluster_of(workers: str) -> Iterator[Cluster | None]:
    """The cluster that has a job's workers, while the block runs; None where it has none.

    Raises:
        InputError: a cluster that is not there, or of other versions.
        JobError: Ray cannot be started.
    """
    if not workers:
        yield None
        return
    place = place_of(workers)
    set_up_for(place)
    with _own_signals():
        from tilesmith.tuner.fleet.cluster import Cluster

        cluster = Cluster.open(place)
    with cluster:
        yield cluster


@contextmanager
def fleet_of(
    cluster: Cluster | None, target: Target, threads: int, *, measures: bool = False
) -> Iterator[Fleet | None]:
    """The fleet of a job while the block runs; None without a cluster.

    Args:
        measures: whether workers time trials on hardware.
    """
    if cluster is None:
        yield None
        return
    from tilesmith.tuner.fleet.fleet import Fleet

    with Fleet(cluster, target, threads, measures=measures) as fleet:
        yield fleet


def searched_on(
    cluster: Cluster | None,
    target: Target,
    threads: int,
    search: Callable[[Fleet | None, bool], T],
    *,
    measures: bool,
) -> T:
    """What a search comes to with the fleet of a cluster.

    Where a Ray of the job's own ends under it, another is started and the search goes on there.

    Args:
        search: is given the fleet, and whether it is to resume what it began before.

    Raises:
        ClusterLost: a Ray that is not ours to start ended; or ours did, and nothing was done with
            any of the last `_RAYS` of it.
    """
    again, idle = False, 0
    while True:
        with fleet_of(cluster, target, threads, measures=measures) as fleet:
            try:
                return search(fleet, again)
            except ClusterLost as error:
                assert cluster is not None and fleet is not None, "there is no Ray to be lost"
                idle = 0 if fleet.answered else idle + 1
                if not cluster.is_own or idle >= _RAYS:
                    raise
                LOG.warning("%s: it is started again", str(error).partition(";")[0])
        with _own_signals():
            cluster.restart()
        again = True


def hosts_of(cluster: Cluster, target: Target, threads: int) -> dict[str, Target]:
    """The machines of a cluster, as targets, by name; a target is asked for to find them."""
    from tilesmith.tuner.fleet.fleet import Fleet

    with Fleet(cluster, target, threads, measures=True) as fleet:
        return fleet.hosts()


@contextmanager
def helpers(workers: str) -> Iterator[Mapped]:
    """Where parts of a training are done while the block runs: in this process, or by workers.

    Raises:
        InputError: a cluster that is not there, or of other versions.
        DependencyError: Ray is not installed.
        JobError: Ray cannot be started.
    """
    if not workers:
        from tilesmith.tuner.model_corpus import here

        yield here
        return
    place = place_of(workers)
    required("ray", extra="ray")
    set_up_for(place)
    with _own_signals():
        from tilesmith.tuner.fleet.calls import called
        from tilesmith.tuner.fleet.cluster import Cluster

        cluster = Cluster.open(place)
    with cluster:
        yield called


def runners_of(fleet: Fleet, names: Sequence[str]) -> list[Runner]:
    """Runners of these names whose trials a fleet does."""
    from tilesmith.tuner.fleet.runner import FleetRunner

    return [FleetRunner(fleet, name) for name in names]  # type: ignore[arg-type]


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself when it is imported; a job's handlers are kept."""
    mine = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, mine)
