"""Ray's workers as a pool: many processes or machines that do a job's trials.

Ray is imported when a job has workers, not before.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from tilesmith.capabilities.fleet.settings import ClusterLost, place_of, set_up_for
from tilesmith.jobs.extras import required
from tilesmith.jobs.notices import LOG
from tilesmith.jobs.pools import Fleet as AnyFleet
from tilesmith.jobs.pools import WorkerPool, pools
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import InputError

if TYPE_CHECKING:
    from tilesmith.capabilities.fleet.cluster import Cluster
    from tilesmith.capabilities.fleet.fleet import RayFleet
    from tilesmith.tuner.measurement.runner import Runner
    from tilesmith.tuner.pretrained.model_corpus import Mapped

T = TypeVar("T")

_RAYS = 3
"""How many Rays of a job's own may end one after the other before anything is done with them."""


@pools.register("ray")
class RayPool(WorkerPool):
    """Workers of a Ray that a job starts itself, or of a cluster that is there."""

    def check(self, workers: str, measure: str) -> None:
        place_of(workers)
        if measure == "replay":
            raise InputError(
                "a replay looks results up, which needs no workers; leave --workers out"
            )
        required("ray", extra="ray")

    @contextmanager
    def cluster(self, workers: str) -> "Iterator[Cluster]":
        place = place_of(workers)
        set_up_for(place)
        with _own_signals():
            from tilesmith.capabilities.fleet.cluster import Cluster

            cluster = Cluster.open(place)
        with cluster:
            yield cluster

    def searched(
        self,
        cluster: "Cluster",
        target: Target,
        threads: int,
        search: Callable[[AnyFleet | None, bool], T],
        *,
        measures: bool,
    ) -> T:
        """As the pool; where a Ray of the job's own ends under it, another is started and the
        search goes on there.

        Raises:
            ClusterLost: a Ray that is not ours to start ended; or ours did, and nothing was done
                with any of the last `_RAYS` of it.
        """
        again, idle = False, 0
        while True:
            with fleet_of(cluster, target, threads, measures=measures) as fleet:
                try:
                    return search(fleet, again)
                except ClusterLost as error:
                    idle = 0 if fleet.answered else idle + 1
                    if not cluster.is_own or idle >= _RAYS:
                        raise
                    LOG.warning("%s: it is started again", str(error).partition(";")[0])
            with _own_signals():
                cluster.restart()
            again = True

    def hosts(self, cluster: "Cluster", target: Target, threads: int) -> Mapping[str, Target]:
        with fleet_of(cluster, target, threads, measures=True) as fleet:
            return fleet.hosts()

    def runners(self, fleet: Any, names: Sequence[str]) -> "list[Runner]":
        from tilesmith.capabilities.fleet.runner import FleetRunner

        return [FleetRunner(fleet, name) for name in names]  # type: ignore[arg-type]

    @contextmanager
    def helpers(self, workers: str) -> "Iterator[Mapped]":
        place_of(workers)
        required("ray", extra="ray")
        with self.cluster(workers):
            from tilesmith.capabilities.fleet.calls import called

            yield called


@contextmanager
def fleet_of(
    cluster: "Cluster", target: Target, threads: int, *, measures: bool
) -> "Iterator[RayFleet]":
    """The fleet of a job while the block runs."""
    from tilesmith.capabilities.fleet.fleet import RayFleet

    with RayFleet(cluster, target, threads, measures=measures) as fleet:
        yield fleet


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself when it is imported; a job's handlers are kept."""
    mine = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, mine)
