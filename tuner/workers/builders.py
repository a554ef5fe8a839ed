"""`Builders`: several processes make code at once, where there are cores for them.

Compiling takes longer than running most kernels. While code is made nothing is measured, and while
something is measured nobody else makes code: timings stay as quiet as with one process. The process
that measures makes code as well; with one core there is no other.
"""

import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tilesmith.search_space.support.errors import JobError
from tilesmith.tuner.measurement.runner import Candidate
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.workers.worker_process import WorkerProcess

_MOST = 4


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Builders:
    """See the module's docstring.

    Args:
        measuring: the process that measures.
        setup: of workers, see `tuner.workers.worker`.
        timeout_s: longest that one piece of code may take.
        processes: how many make code, the measuring one among them.
    """

    def __init__(
        self, measuring: WorkerProcess, setup: dict[str, Any], timeout_s: float, processes: int = 0
    ) -> None:
        wanted = processes or min(_MOST, cores())
        self._timeout_s = timeout_s
        self._workers = [measuring, *(WorkerProcess(setup) for _ in range(wanted - 1))]
        self._pool = ThreadPoolExecutor(wanted)
        self._made: list[Candidate] = []

    def ahead(self, batch: Sequence[Candidate], cancel: CancelToken | None) -> int:
        """Make code of the first few of a batch, unless that of the very first is there; says of
        how many."""
        few = list(batch[: len(self._workers)])
        if len(few) < 2 or few[0] in self._made:
            return 0
        self._made = few
        begun = [
            self._pool.submit(self._build, worker, candidate, cancel)
            for worker, candidate in zip(self._workers, few, strict=False)
        ]
        for one in begun:
            one.result()
        return len(few)

    def close(self) -> None:
        """Stop those that only make code."""
        self._pool.shutdown()
        for worker in self._workers[1:]:
            worker.close()

    def _build(
        self, worker: WorkerProcess, candidate: Candidate, cancel: CancelToken | None
    ) -> None:
        """One piece of code; whatever happens, the trial will tell."""
        workload, config = candidate
        asked = {"build": {"workload": workload.key, "config": dict(config)}}
        with contextlib.suppress(JobError):
            worker.ask(asked, self._timeout_s, cancel)
