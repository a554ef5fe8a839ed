"""A PostgreSQL server of one's own, to be killed: started from the system's binaries, in a folder.

    with Server.started(folder) as server:
        Database.open(server.url)
        server.kill()      # kill -9 of all its processes, as a loss of power would end them
        server.start()

Nothing outside the folder is touched, no port is opened (a socket in the folder), and at the end no
process of it is left. It refuses to run as root, and is then run as `postgres` or `nobody`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, Self

from tilesmith.search_space.support.errors import DependencyError, JobError

_UP_S = 60.0
Mode = Literal["smart", "fast", "immediate"]


def binaries() -> Path | None:
    """The folder of the newest PostgreSQL installed, None if there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    return Path(on_path).resolve().parent if on_path else None


class Server:
    """See the module's docstring.

    Args:
        folder: empty; owned by the server from now on.
        connections: as many clients at once.
    """

    def __init__(self, folder: Path, connections: int = 60) -> None:
        tools = binaries()
        if tools is None:
            raise DependencyError("no PostgreSQL is installed here: its 'initdb' was not found")
        self.folder, self._tools = folder, tools
        self.url = f"postgresql://tester@/postgres?host={folder}"
        self._data = folder / "data"
        self._user = server_user(folder)
        self._run("initdb", "-D", self._data, "-U", "tester", "-A", "trust", "-N")
        settings = {
            "unix_socket_directories": f"'{folder}'",
            "listen_addresses": "''",
            "max_connections": connections,
            "shared_buffers": "'64MB'",
            "fsync": "off",  # processes die here, machines do not
        }
        with (self._data / "postgresql.auto.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())

    @classmethod
    @contextmanager
    def started(cls, folder: Path, connections: int = 60) -> Iterator[Self]:
        """One that runs while the block does."""
        server = cls(folder, connections)
        server.start()
        try:
            yield server
        finally:
            with suppress(JobError):
                server.stop("immediate")

    def start(self) -> None:
        log = self.folder / "log"
        self._run("pg_ctl", "-D", self._data, "-l", log, "-w", "-t", int(_UP_S), "start")

    def stop(self, mode: Mode = "fast") -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-m", mode, "stop")

    def restart(self, mode: Mode) -> None:
        log = self.folder / "log"
        self._run("pg_ctl", "-D", self._data, "-l", log, "-w", "-m", mode, "restart")

    def kill(self) -> None:
        """`kill -9` of the server and all it started, and wait until they are gone."""
        numbers = self.processes()
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        deadline = time.monotonic() + _UP_S
        while any(map(_is_alive, numbers)) and time.monotonic() < deadline:
            time.sleep(0.02)
        for left in (self._data / "postmaster.pid", *self.folder.glob(".s.PGSQL.*")):
            left.unlink(missing_ok=True)  # a dead server that nobody waited for still has a number

    def processes(self) -> list[int]:
        """The numbers of the server's processes, its own first."""
        try:
            first = int((self._data / "postmaster.pid").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return []
        return [number for number in (first, *_children(first)) if _is_alive(number)]

    def _run(self, tool: str, *arguments: object) -> None:
        done = subprocess.run(
            [str(self._tools / tool), *map(str, arguments)],
            user=self._user,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            log = self.folder / "log"
            told = (done.stderr + (log.read_text() if log.exists() else "")).strip()
            raise JobError(f"PostgreSQL's {tool} failed: {told[-600:]}")


def server_user(folder: Path) -> str | None:
    """Who a server runs as: root it refuses, so another user gets the folder; None: who we are."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = "postgres" if "postgres" in names else "nobody"
    shutil.chown(folder, user)
    return user


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError, ValueError):
            if int(entry.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.parent.name))
    return found


def _is_alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
