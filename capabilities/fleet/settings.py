"""What Ray reads from the environment when it is imported, and must be there before.

Ray's own processes listen where others on this machine, or in its network, can reach them, and run
what they are told. So a Ray of our own asks for a token that only this process and its children
know; it is made once, as Ray reads it once.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from tilesmith.capabilities.fleet.places import WorkerPlace
from tilesmith.search_space.support.errors import InputError

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
