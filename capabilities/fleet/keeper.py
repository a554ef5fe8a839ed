"""The keeper of a local Ray: starts it, and ends all of it when whoever asked for it is gone.

    python -m tilesmith.capabilities.fleet.keeper

Ray's own processes outlive a driver that was killed. The keeper is their ancestor: it adopts what
they leave behind (a Linux "subreaper"), waits for the end of its stdin, which comes when its parent
closes it or dies in whatever way, then kills every descendant and removes their folder. First line
in: {"workers", "memory", "start_s"}; first line out: {"address", "folder"} or {"error"}. It imports
nothing but the standard library, and Ctrl-C at the terminal does not reach it.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_AGAIN_S = 0.02


def main() -> None:
    """See the module's docstring."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _unheeded)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    asked = json.loads(sys.stdin.readline())
    folder = tempfile.mkdtemp(prefix="tilesmith-ray-")
    try:
        reply = json.dumps(_started(asked, folder))
        with contextlib.suppress(BrokenPipeError):  # who waited for it is gone
            print(reply, flush=True)
        while sys.stdin.read(1 << 16):
            pass
    finally:
        end_descendants()
        shutil.rmtree(folder, ignore_errors=True)


def _unheeded(number: int, frame: object) -> None:
    """The parent decides. (To ignore a signal altogether would be inherited by Ray.)"""


def _started(asked: dict[str, Any], folder: str) -> dict[str, str]:
    """Start a head node with nothing in it that tuning does not need."""
    port, client_port = _free_ports(2)
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head"]
    command += ["--node-ip-address=127.0.0.1", f"--port={port}", f"--num-cpus={asked['workers']}"]
    command += [f"--object-store-memory={asked['memory']}", f"--temp-dir={folder}"]
    command += ["--include-dashboard=false", "--include-log-monitor=false"]
    command += ["--disable-usage-stats", f"--ray-client-server-port={client_port}"]
    output = Path(folder, "start.log")
    with output.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": folder},
        )
    until = time.monotonic() + asked["start_s"]
    while (code := process.poll()) is None:
        if time.monotonic() > until:
            return {"error": f"it did not start within {asked['start_s']:g} s; {_last(output)}"}
        if select.select([sys.stdin], [], [], _AGAIN_S)[0]:
            return {"error": "nobody waits for it any more"}  # the end of our stdin
    if code:
        return {"error": f"it ended with exit status {code}; {_last(output)}"}
    return {"address": f"127.0.0.1:{port}", "folder": folder}


def _last(output: Path) -> str:
    """The last that Ray said while it started."""
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines()]
    last = [line for line in lines if line][-1:]
    return f"the last it said was '{last[0]}'" if last else "it has not said anything yet"


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as opened:
        probes = [opened.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def end_descendants() -> None:
    """Kill and reap every descendant, until none is left."""
    while processes := descendants(os.getpid()):
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_AGAIN_S)


def end_without_keeper(keeper: int, folder: str) -> None:
    """End a Ray whose keeper was killed: all of its session, which Ray's processes do not leave.

    Neither parents nor titles tell them: orphans have another parent, and not all name the folder.
    """
    while processes := [p for p, (_, session) in _stats().items() if session == keeper]:
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_AGAIN_S)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def descendants(process: int) -> list[int]:
    """Process ids below one, dead ones that nobody has asked for included."""
    parents = {child: parent for child, (parent, _) in _stats(dead=True).items()}
    processes, below = [], {process}
    while below:
        below = {child for child, parent in parents.items() if parent in below}
        processes += sorted(below)
    return processes


def _stats(dead: bool = False) -> dict[int, tuple[int, int]]:
    """Parent and session of every process of the system, of dead ones on request (Linux)."""
    stats: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir() if Path("/proc/self/stat").exists() else ():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent, _, session = (
                    (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                )
                if dead or state not in "ZX":
                    stats[int(entry.name)] = int(parent), int(session)
    return stats


if __name__ == "__main__":
    main()
