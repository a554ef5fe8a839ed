"""Long work in the simulators and backends says what it is at; whoever shows progress listens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


@contextmanager
def told(listener: Callable[[str], None]) -> Iterator[None]:
    """Tell `listener` what is done inside the block, and nobody else."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(text: str) -> None:
    """What is being done now."""
    listener = _listener.get()
    if listener is not None:
        listener(text)
