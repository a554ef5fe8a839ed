"""Serving the live page: a socket, a token where others can reach it, and a quiet end.

No web server of Python's limits how long a connection may take to say what it asks for. A
connection that sends half of a request's head costs a descriptor for as long as it likes, and a few
hundred of them leave none for others. The time is counted from the moment a connection is made, or
from the first byte after an answer, and goes on until a head is whole, however many bytes come.
"""

import secrets
import socket
from asyncio import TimerHandle, Transport
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from urllib.parse import quote

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tilesmith.capabilities.dashboard.application import Dashboard
from tilesmith.capabilities.dashboard.guard import (
    LEAST_TOKEN,
    AccessRules,
    Guard,
    is_loopback,
    known_hosts,
)
from tilesmith.capabilities.dashboard.pages.rendering import render
from tilesmith.search_space.support.errors import InputError

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


_ENDING_S = 2


@dataclass(frozen=True)
class ServerPlace:
    """Where the page is served, and for whom.

    Attributes:
        host: an address or name of this machine; `0.0.0.0` is all of its addresses.
        port: 0 takes a free one.
        token: None makes one up where the host is not loopback.
        more_hosts: names that browsers may call it by, such as a reverse proxy's.
    """

    host: str
    port: int
    token: str | None = None
    more_hosts: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.token is not None and (
            len(self.token) < LEAST_TOKEN
            or not self.token.isascii()
            or not self.token.isprintable()
        ):
            raise InputError(
                f"the token is too weak: {LEAST_TOKEN} ASCII characters or more are expected, such "
                "as 'openssl rand -hex 16' prints"
            )


def serve(location: str, place: ServerPlace, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        location: of the database.
        say: is told, in lines, where the page is.

    Raises:
        DatabaseError: the database cannot be opened. A file that nobody has made is waited for.
        InputError: the port is taken, or the host is none of this machine's.
    """
    dashboard = Dashboard(location)
    with closing(dashboard.access):
        if dashboard.access.awaited():
            say(f"'{dashboard.name}' is not there yet: the page waits for it")
        else:
            with dashboard.access.database():
                pass  # a database that cannot be opened is said at once
        _serve(dashboard, place, say)


def _serve(dashboard: Dashboard, place: ServerPlace, say: Callable[[str], None]) -> None:
    secret = None
    if place.token is None and not is_loopback(place.host):
        secret = secrets.token_urlsafe(24)
    token = place.token or secret
    rules = AccessRules(
        token, known_hosts([place.host, *place.more_hosts]), lambda: render("sign_in.html")
    )
    with closing(listening(place)) as bound:
        port = bound.getsockname()[1]
        say(f"{_address(place.host, port)}{f'/?token={quote(secret)}' if secret else '/'}")
        if place.token is not None:
            say("with '?token=' and the token behind it, once in each browser")
        say("Ctrl-C ends it")
        config = configuration(Guard(dashboard.application(), rules))
        with suppress(KeyboardInterrupt):  # it has ended in order, and tells of the signal again
            uvicorn.Server(config).run(sockets=[bound])


def configuration(application: Guard, protocol: type[Patient] = Patient) -> uvicorn.Config:
    """How the web server runs the page."""
    return uvicorn.Config(
        application,
        http=protocol,
        ws="none",
        limit_concurrency=MOST_CONNECTIONS,
        log_level="error",
        access_log=False,  # it would hold tokens
        server_header=False,
        timeout_graceful_shutdown=_ENDING_S,
        lifespan="off",
    )


def listening(place: ServerPlace) -> socket.socket:
    """A bound socket.

    Raises:
        InputError: it cannot be bound.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise InputError(
            f"'{place.host}' is no address of this machine: {error.strerror}"
        ) from error
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise InputError(
            f"port {place.port} of '{place.host}' cannot be used: {error.strerror}; name another "
            "with --port, 0 takes a free one"
        ) from error
    bound.set_inheritable(False)
    return bound


def _address(host: str, port: int) -> str:
    name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"
