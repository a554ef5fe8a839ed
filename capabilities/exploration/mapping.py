"""Where the parts of a search for hardware are done: here, in processes beside, or by workers."""

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tilesmith.records.exchange.parallel import end_with_parent
from tilesmith.search_space.support.errors import JobError

if TYPE_CHECKING:
    from tilesmith.tuner.pretrained.model_corpus import Mapped


@contextmanager
def mapped_over(jobs: int, workers: str) -> "Iterator[Mapped]":
    """Give a map whose answers come in the order asked; what it runs on ends with the block.

    Processes begin at once, so that the caller can do something else before it takes the answers.

    Args:
        jobs: processes on this machine; one is this process.
        workers: as `jobs.pools.helpers` takes them; "" for none.

    Raises:
        InputError, DependencyError, JobError: as `jobs.pools.helpers`.
    """
    from tilesmith.jobs.pools import helpers

    if workers or jobs < 2:
        with helpers(workers) as mapped:
            yield mapped
        return
    spawned = multiprocessing.get_context("spawn")  # threads of libraries do not survive a fork
    with ProcessPoolExecutor(jobs, spawned, _begin) as pool:

        def beside(function: Callable[..., Any], asked: Sequence[tuple[Any, ...]]) -> Iterable[Any]:
            begun = [pool.submit(function, *arguments) for arguments in asked]
            return (one.result() for one in begun)

        try:
            yield beside
        except BrokenProcessPool as error:
            raise JobError(
                "a process that did a part of this job was killed, perhaps for its memory; try "
                "again with fewer --jobs"
            ) from error
        except BaseException:  # what was asked for is of no use any more
            for process in list((pool._processes or {}).values()):
                process.terminate()
            # The pool's own thread joins them: of two that wait for one process only one learns
            # how it ended, and the other would take it for alive.
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _begin() -> None:
    """Ctrl-C reaches every process of a terminal's job: the parent ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
