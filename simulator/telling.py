"""Long work in the simulators and backends says what it is at; whoever shows progress listens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


@contextmanager
def reports_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Send what `tell` reports inside the block to `listener` alone."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(text: str) -> None:
    """Report in words what is being done, to the listener if there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(text)
