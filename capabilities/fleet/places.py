"""Where the workers of a job are: what `--workers` names. Knows no Ray.

A number starts a Ray on this machine, with so many workers; `ray` is the cluster that this machine
belongs to (or `RAY_ADDRESS` names); `auto` is that cluster if there is one, else a Ray of our own
with a worker for each core; `ray://HOST:PORT` is a cluster's Ray Client server.
"""

from __future__ import annotations

import contextlib
import os
import re
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
