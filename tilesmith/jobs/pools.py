"""Pools of workers: many processes or machines that do a job's trials, where it names workers.

A capability registers a pool (`pools`). A job that names no workers asks for none: its trials are
done in this process. Everything here takes "" or None for that.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.extensions import absent
from tilesmith.search_space.support.registry import Registry

if TYPE_CHECKING:
    from tilesmith.tuner.machines.identity import Machine
    from tilesmith.tuner.measurement.runner import Runner
    from tilesmith.tuner.pretrained.model_corpus import Mapped

T = TypeVar("T")


class Fleet(Protocol):
    """The workers that do one job's trials."""

    def machines(self) -> "Iterable[Machine]":
        """Those that anything was measured on."""
        ...


Cluster = Any
"""What has the workers of one or several jobs; only the pool looks into it."""


class WorkerPool(ABC):
    """How workers are got and asked."""

    @abstractmethod
    def check(self, workers: str, measure: str) -> None:
        """Refuse what no job can do, before anything is started.

        Args:
            workers: what was asked for.
            measure: how trials are measured.

        Raises:
            InputError: not understood, or there is nothing for workers to do.
            DependencyError: what the pool needs is not installed.
        """

    @abstractmethod
    def cluster(self, workers: str) -> AbstractContextManager[Cluster]:
        """The cluster that has a job's workers, while the block runs.

        Raises:
            InputError: a cluster that is not there, or of other versions.
            JobError: it cannot be started.
        """

    @abstractmethod
    def searched(
        self,
        cluster: Cluster,
        target: Target,
        threads: int,
        search: Callable[[Fleet | None, bool], T],
        *,
        measures: bool,
    ) -> T:
        """What a search comes to with the fleet of a cluster, whatever becomes of its workers.

        Args:
            search: is given the fleet, and whether it is to resume what it began before.
            measures: whether workers time trials on hardware.
        """

    @abstractmethod
    def hosts(self, cluster: Cluster, target: Target, threads: int) -> Mapping[str, Target]:
        """The machines of a cluster, as targets, by name."""

    @abstractmethod
    def runners(self, fleet: Any, names: Sequence[str]) -> "list[Runner]":
        """Runners of these names whose trials a fleet does."""

    @abstractmethod
    def helpers(self, workers: str) -> "AbstractContextManager[Mapped]":
        """Where parts of a training are done while the block runs; errors as `cluster`."""


pools: Registry[type[WorkerPool]] = Registry("pool of workers", "", room="worker_pool")


def _pool() -> WorkerPool:
    """The pool that is installed; `DependencyError` if there is none."""
    for name in pools:
        return pools[name]()
    raise absent("fleet", "a job with workers")


def check_workers(workers: str, measure: str) -> None:
    """As `WorkerPool.check`; a job without workers is always right."""
    if workers:
        _pool().check(workers, measure)


@contextmanager
def cluster_of(workers: str) -> Iterator[Cluster | None]:
    """As `WorkerPool.cluster`; None for a job without workers."""
    if not workers:
        yield None
        return
    with _pool().cluster(workers) as cluster:
        yield cluster


def searched_on(
    cluster: Cluster | None,
    target: Target,
    threads: int,
    search: Callable[[Fleet | None, bool], T],
    *,
    measures: bool,
) -> T:
    """As `WorkerPool.searched`; in this process where there is no cluster."""
    if cluster is None:
        return search(None, False)
    return _pool().searched(cluster, target, threads, search, measures=measures)


def hosts_of(cluster: Cluster, target: Target, threads: int) -> Mapping[str, Target]:
    """As `WorkerPool.hosts`."""
    return _pool().hosts(cluster, target, threads)


def runners_of(fleet: Fleet, names: Sequence[str]) -> "list[Runner]":
    """As `WorkerPool.runners`."""
    return _pool().runners(fleet, names)


@contextmanager
def helpers(workers: str) -> "Iterator[Mapped]":
    """As `WorkerPool.helpers`; in this process where no workers are named."""
    if not workers:
        from tilesmith.tuner.pretrained.model_corpus import here

        yield here
        return
    with _pool().helpers(workers) as mapped:
        yield mapped
