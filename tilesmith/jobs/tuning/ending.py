"""How a tuning job ends that its search does not end: marked in the database, and told of.

Invariant: from the moment that a job is registered to its last commit, nothing that this process
survives leaves it running in the database: neither a signal nor an error.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tilesmith.jobs.tuning.tune_reports import TuneReport
from tilesmith.search_space.support.ending import exit_code
from tilesmith.search_space.support.errors import JobError, TilesmithError
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.ledger import Ledger


class JobStopped(JobError):  # noqa: N818  (the user asked for it)
    """A signal ended the job; every trial of it is in the database.

    Attributes:
        report: what it came to; None where it had not begun to measure.
        reason: the signal's name, or who else stopped it.
    """

    def __init__(self, report: TuneReport | None, message: str, reason: str) -> None:
        super().__init__(message)
        self.report, self.reason = report, reason
        self.exit_code = exit_code(reason)


@contextmanager
def ended_in_order(ledger: Ledger, token: CancelToken, database: str) -> Iterator[None]:
    """Mark the ledger's job as ended if the block raises, whatever that is.

    Raises:
        JobStopped: a signal tore the block.
    """
    try:
        yield
    except BaseException as error:
        with token.shielded(), suppress(TilesmithError):  # the ledger may be what failed
            if token.torn:
                ledger.finish("interrupted", f"cancelled by {token.reason}")
            else:
                ledger.finish("failed", str(error) or type(error).__name__)
        if not token.torn:
            raise
        raise JobStopped(
            None,
            f"stopped by {token.reason} while no trial was under way; every trial that was "
            f"finished is kept in '{database}'; the same job with --resume goes on",
            token.reason,
        ) from error
