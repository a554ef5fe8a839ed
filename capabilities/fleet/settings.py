"""What is settled before Ray is imported: where the workers are, and what Ray reads from the
environment.

Ray's own processes listen where others on this machine, or in its network, can reach them, and run
what they are told. So a Ray of our own asks for a token that only this process and its children
know; it is made once, as Ray reads it once.

`--workers` names where the workers of a job are. A number starts a Ray on this machine, with so
many workers; `ray` is the cluster that this machine belongs to (or `RAY_ADDRESS` names); `auto` is
that cluster if there is one, else a Ray of our own with a worker for each core; `ray://HOST:PORT`
is a cluster's Ray Client server.
"""

import contextlib
import os
import re
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

from tilesmith.search_space.support.errors import InputError, JobError
from tilesmith.tuner.workers.builders import cores


@dataclass(frozen=True)
class WorkerPlace:
    """What `--workers` names: `workers` of our own on this machine, or the `address` of a Ray."""

    workers: int | None
    address: str = ""


class ClusterLost(JobError):  # noqa: N818  (nobody's mistake)
    """Ray ended while a job used it; a Ray of the job's own can be started again."""


def place_of(asked: str) -> WorkerPlace:
    """What `--workers` names.

    Raises:
        InputError: nothing that it can name.
    """
    if asked.isdecimal() and int(asked) > 0:
        return WorkerPlace(int(asked))
    if asked == "auto":
        return WorkerPlace(None, "auto") if known_address() else WorkerPlace(cores())
    if asked == "ray":
        return WorkerPlace(None, "auto")
    if re.fullmatch(r"ray://[^\s/:]+:\d+", asked):
        return WorkerPlace(None, asked)
    raise InputError(
        f"workers = '{asked}' is not understood; a number from 1 on, auto, ray, or "
        "ray://HOST:PORT is expected"
    )


def known_address() -> str:
    """The cluster this machine belongs to; "" if there is none."""
    if address := os.environ.get("RAY_ADDRESS", ""):
        return address
    with contextlib.suppress(OSError):
        return Path("/tmp/ray/ray_current_cluster").read_text().strip()
    return ""


_PATIENCE = {"RAY_health_check_failure_threshold": "10000"}
"""On one machine no node goes away without the others: one that is silent was stopped, or slept."""
_PRIORITY = {"RAY_worker_niceness": "0"}
"""Workers measure: at Ray's own niceness of 15 anything else that runs would be in their times."""


_START = "TILESMITH_RAY_START_SECONDS"
_START_S = 180.0


def start_seconds() -> float:
    """How long a Ray of our own may take to start; on a busy machine it takes a minute.

    Raises:
        InputError: the variable holds no such number.
    """
    asked = os.environ.get(_START, "")
    try:
        seconds = float(asked or _START_S)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:
        raise InputError(f"{_START} is '{asked}', not a number of seconds above 0, a day at most")
    return seconds


def set_up_for(place: WorkerPlace) -> None:
    """Settings for a Ray of our own, or to join another; what the user has set is left alone.

    Where Ray was imported before it is too late: then it stays as it is.
    """
    if "ray" in sys.modules or "RAY_AUTH_MODE" in os.environ:
        return
    if place.workers is not None:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    elif place.address == "auto" and Path.home().joinpath(".ray", "auth_token").exists():
        os.environ["RAY_AUTH_MODE"] = "token"  # as 'ray start' does where there is one


def for_children() -> dict[str, str]:
    """The environment of a Ray of our own: as this process has it, but of no other cluster."""
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {"RAY_AUTH_MODE": "disabled", **_PATIENCE, **_PRIORITY, **inherited, "PYTHONPATH": path}
