"""Serving the live page: a socket, a token where others can reach it, and a quiet end."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from urllib.parse import quote

import uvicorn

from tilesmith.capabilities.dashboard.application import Dashboard
from tilesmith.capabilities.dashboard.guard import (
    LEAST_TOKEN,
    AccessRules,
    Guard,
    is_loopback,
    known_hosts,
)
from tilesmith.capabilities.dashboard.pages.rendering import render
from tilesmith.capabilities.dashboard.patience import MOST_CONNECTIONS, Patient
from tilesmith.search_space.support.errors import InputError

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
