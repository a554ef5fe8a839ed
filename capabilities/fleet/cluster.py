"""A Ray to work with: one that is there, or one of our own that ends with us.

    with Cluster.open(place_of("2")) as cluster: ...

Ray may end under a job: its node manager dies with any of its agents, and nothing in Ray tells a
driver so, whose next call may wait for minutes or end the process. `check` asks the two processes
that everything goes through whether they answer; it is to be asked before anything is asked of Ray.
One that was stopped for a while still does.

A Ray of our own asks for a token that only this process and its children know, writes its files
into a folder of its own, and is ended by its keeper whatever becomes of us.
"""

import contextlib
import json
import logging
import socket
import subprocess
import sys
from typing import Any

import ray

from tilesmith.capabilities.fleet.keeper import end_without_keeper
from tilesmith.capabilities.fleet.settings import (
    ClusterLost,
    WorkerPlace,
    for_children,
    known_address,
    start_seconds,
)
from tilesmith.search_space.support.errors import InputError, JobError

_OBJECT_STORE_BYTES = 80_000_000
"""The least that Ray takes: what is sent are texts."""
_CONNECT_S = 10.0
_END_S = 5.0
_PROBE_S = 0.2

_PRINTS = getattr(ray._private.worker, "print_to_stdstream", None)


class Cluster:
    """A connection to Ray; a context manager.

    Attributes:
        workers: how many there are to be, where the Ray is our own; None: as many as it has cores.
    """

    def __init__(
        self, workers: int | None, keeper: subprocess.Popen[bytes] | None, address: str = ""
    ) -> None:
        self.workers = workers
        self._keeper = keeper
        self._address = address
        self._folder = ""
        self.is_lost = False
        """Whether Ray was seen to have ended; nothing must be asked of it any more."""

    @property
    def is_own(self) -> bool:
        """Whether it is ours to start again."""
        return self.workers is not None

    def check(self) -> None:
        """See that Ray is there.

        Raises:
            ClusterLost: it is not.
        """
        gone = self._gone()
        if gone:
            self.is_lost = True
            what = "Ray ended under the job" if self.is_own else "the Ray cluster is gone"
            raise ClusterLost(
                f"{what}: {gone}; every trial that was finished is kept, and the same job with "
                "--resume goes on"
            )

    def _gone(self) -> str:
        """Which of Ray's processes does not answer; "" if all do."""
        if self._keeper is not None and self._keeper.poll() is not None:
            return "its keeper died"
        node = ray._private.worker._global_node
        if node is None:  # by Ray Client
            address = self._address.removeprefix("ray://")
            return "" if not address or _listens(address) else f"nobody answers at '{address}'"
        if not _listens(node.raylet_socket_name):
            return "the manager of this node (raylet) died"
        return "" if _listens(node.gcs_address) else "its head (gcs_server) died"

    def restart(self) -> None:
        """Start a Ray of our own again.

        Raises:
            JobError: it cannot be.
        """
        assert self.workers is not None, "others' clusters are not ours to start"
        self.close()
        fresh = _started(self.workers)
        self._keeper, self._folder, self.is_lost = fresh._keeper, fresh._folder, False

    @classmethod
    def open(cls, place: WorkerPlace) -> "Cluster":
        """Connect to a cluster, or start one (after `settings.set_up_for`).

        Raises:
            InputError: a cluster that is not there, or of other versions than this process.
            JobError: Ray cannot be started here.
        """
        if place.workers is not None:
            return _started(place.workers)
        _connect(place.address)
        return cls(None, None, place.address)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster; one of our own has no process left when this returns."""
        with contextlib.suppress(Exception):  # Ray may be what failed
            ray.shutdown()
        _let_print(_PRINTS)
        _end(self._keeper, self._folder)
        self._keeper = None


def _let_print(printer: Any) -> None:
    """Have Ray tell what its nodes report by this; None: not at all.

    It prints that to stdout, where results belong, whatever `log_to_driver` says.
    """
    if _PRINTS is not None:
        ray._private.worker.print_to_stdstream = printer or (lambda *_, **__: None)


def _started(workers: int) -> Cluster:
    """A Ray of our own on this machine."""
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tilesmith.capabilities.fleet.keeper"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=for_children(),
        start_new_session=True,
    )
    try:
        assert keeper.stdin is not None and keeper.stdout is not None
        asked = {"workers": workers, "memory": _OBJECT_STORE_BYTES, "start_s": start_seconds()}
        keeper.stdin.write(json.dumps(asked).encode() + b"\n")
        keeper.stdin.flush()
        reply = json.loads(keeper.stdout.readline() or b'{"error": "its keeper died"}')
        if "error" in reply:
            raise JobError(
                f"Ray could not be started on this machine: {reply['error']}; where it is only "
                "busy, TILESMITH_RAY_START_SECONDS gives it more time"
            )
        _init(reply["address"], _node_ip_address="127.0.0.1")
    except BaseException:
        _end(keeper)
        raise
    cluster = Cluster(workers, keeper)
    cluster._folder = reply["folder"]
    return cluster


def _listens(address: str) -> bool:
    """Whether a process listens at HOST:PORT or at the path of a socket.

    Only a refusal, or that the socket is not there, says that it does not: who is busy or stopped
    is slow to answer.
    """
    host, _, port = address.rpartition(":")
    is_path = address.startswith("/")
    with socket.socket(socket.AF_UNIX if is_path else socket.AF_INET) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(address if is_path else (host, int(port)))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


def _end(keeper: subprocess.Popen[bytes] | None, folder: str = "") -> None:
    """Have a keeper end all that it started; done here in the place of one that was killed."""
    if keeper is None:
        return
    for stream in (keeper.stdin, keeper.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        if keeper.wait(_END_S):
            end_without_keeper(keeper.pid, folder)


def _connect(address: str) -> None:
    """Join a cluster that is there, within bounded time."""
    if not (known := address if address.startswith("ray://") else known_address()):
        raise InputError(
            "this machine belongs to no Ray cluster and RAY_ADDRESS is not set; give --workers "
            "ray://HOST:PORT, or a number to start workers here"
        )
    host, _, port = known.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Ray cluster answers at '{known}' ({error}); start one there with 'ray start "
            "--head', or give --workers a number to start workers here"
        ) from error
    _init(known)


def _init(address: str, **more: Any) -> None:
    """`ray.init`, quietly, with its failures as sentences."""
    if ray.is_initialized():
        raise JobError(
            "this process is connected to a Ray cluster already; call ray.shutdown() first"
        )
    _let_print(None)
    try:
        ray.init(
            address,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            **more,
        )
    except (RuntimeError, ConnectionError, ValueError, ray.exceptions.RayError) as error:
        _let_print(_PRINTS)
        reason = " ".join(str(error).split())
        raise InputError(f"the Ray cluster at '{address}' cannot be used: {reason}") from error
