"""A connection that does not finish its question is closed; those that do are answered."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("uvicorn", reason="the live page is served with uvicorn")
pytest.importorskip("starlette", reason="the live page is made with starlette")

import uvicorn
from starlette.responses import PlainTextResponse

from tilesmith.capabilities.dashboard.guard import AccessRules, Guard, known_hosts
from tilesmith.capabilities.dashboard.server import MOST_CONNECTIONS, Patient, configuration

ASKED = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
WAIT_S = 60.0
"""A test that fails ends; none of those that pass waits so long."""


class Short(Patient):
    head_s = 0.05


@contextmanager
def served(protocol: type[Patient]) -> Iterator[Callable[[], socket.socket]]:
    """Make connections to a server of that protocol."""
    guard = Guard(PlainTextResponse("hello"), AccessRules(None, known_hosts([]), str))
    config = configuration(guard, protocol)
    if protocol is Short:
        config.timeout_keep_alive = 0
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        address = listening.getsockname()
        try:
            yield lambda: socket.create_connection(address, timeout=WAIT_S)
        finally:
            server.should_exit = True
            thread.join()


def rest(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    with connection:
        return b"".join(iter(lambda: connection.recv(4096), b""))


@pytest.fixture(scope="module")
def connect() -> Iterator[Callable[[], socket.socket]]:
    with served(Short) as make:
        yield make


@pytest.mark.parametrize("half", [b"", b"G", ASKED[:-2], b"GET / HTTP/1.1\r\nX: 1\r\n"])
def test_half_a_question_is_not_held(connect: Callable[[], socket.socket], half: bytes) -> None:
    connections = [connect() for _ in range(20)]
    for connection in connections:
        connection.sendall(half)
    assert [rest(connection) for connection in connections] == [b""] * 20


def test_drops_of_a_question_do_not_prolong_it(connect: Callable[[], socket.socket]) -> None:
    with connect() as connection:
        connection.settimeout(0.01)
        connection.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(int(WAIT_S / 0.01)):
            try:
                connection.sendall(b"X: 1\r\n")
                if connection.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except OSError:  # reset, because more came after it was closed
                return
        pytest.fail("it is still held")


def test_half_a_second_question_and_a_body_without_end_are_not_held(
    connect: Callable[[], socket.socket],
) -> None:
    for more in (ASKED + ASKED[:-2], ASKED[:-2] + b"Content-Length: 9\r\n\r\nx"):
        connection = connect()
        connection.sendall(more)
        answer = rest(connection)
        assert answer.startswith(b"HTTP/1.1 200") and answer.count(b"hello") == 1


def test_whole_questions_are_answered_one_after_the_other() -> None:
    with served(Patient) as make, make() as connection:
        for _ in range(3):
            connection.sendall(ASKED[:9])
            connection.sendall(ASKED[9:])
            answer = b""
            while b"hello" not in answer:
                answer += connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200")


def test_connections_have_a_limit() -> None:
    guard = Guard(PlainTextResponse("hello"), AccessRules(None, known_hosts([]), str))
    assert configuration(guard).limit_concurrency == MOST_CONNECTIONS
