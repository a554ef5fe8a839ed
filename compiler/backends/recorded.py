"""What the compiler asks of a tuning database, so that it need not know `records`' storage.

Each protocol is fulfilled by a class of `records`; tests fulfil them with a few lines.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload


class Records(Protocol):
    """What the compiler asks of a tuning database (`records.Database`)."""

    def layout_bests(
        self, workloads: Iterable[Workload | str], target: Target | str, threads: int | None = 1
    ) -> "Mapping[str, Mapping[tuple[str, str], BestRecord]]": ...

    def nearest(
        self, workload: Workload, target: Target | str, threads: int | None = None
    ) -> "Iterable[BestRecord]": ...

    def elsewhere(
        self, workload: Workload, target: Target, threads: int
    ) -> "Sequence[BestRecord]": ...

    def origins(self, bests: Sequence[Any]) -> Sequence[Origin]: ...

    def top(
        self,
        workload: Workload | str,
        target: Target | str | None = None,
        *,
        threads: int | None = None,
        limit: int = 10,
    ) -> "Iterable[RecordedConfig]": ...


class BestRecord(Protocol):
    """What the compiler asks of a best record (`records.Best`)."""

    @property
    def record(self) -> "RecordedConfig": ...
    @property
    def stale(self) -> bool: ...
    @property
    def latency(self) -> float: ...


class RecordedConfig(Protocol):
    """What the compiler asks of a trial (`records.TuningRecord`)."""

    @property
    def config(self) -> Config: ...
    @property
    def latency(self) -> float | None: ...
    @property
    def threads(self) -> int: ...
