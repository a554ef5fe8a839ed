"""How long a connection may take to say what it asks for: no web server of Python's limits that.

A connection that sends half of a request's head costs a descriptor for as long as it likes, and a
few hundred of them leave none for others. The time is counted from the moment a connection is made,
or from the first byte after an answer, and goes on until a head is whole, however many bytes come.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 900
"""Requests while there are so many connections are answered with 503: a process may usually open
1,024 files, and the database needs some."""


class Patient(H11Protocol):
    """HTTP over one connection, which is closed unless it asks within `head_s` seconds."""

    head_s = 5.0
    _deadline: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Count the time while nothing is being answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.head_s, self.transport.close)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
