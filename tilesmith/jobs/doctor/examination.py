"""The examination: every question about this machine, asked in order, whatever the answers."""

from collections.abc import Callable, Iterator

from tilesmith.jobs.doctor import installation, noise, processor, working
from tilesmith.jobs.doctor.finding import Finding

_QUESTIONS: tuple[Callable[[], Iterator[Finding]], ...] = (
    processor.findings,
    installation.findings,
    working.findings,
    noise.findings,
)


def examine() -> Iterator[Finding]:
    """Everything that was found, as it is found."""
    for question in _QUESTIONS:
        yield from question()
