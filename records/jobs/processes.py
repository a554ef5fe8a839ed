"""Who runs a job: a name for people, and a signature that tells whether that process still lives.

A signature names one process among all that ever ran on one boot of one machine (Linux: boot,
namespace of process numbers, number, start time), so that a number given out again, or the same
number in another container, is not taken for it. Where the system tells none of this it is empty,
and heartbeats decide alone.
"""

import getpass
import os
import platform
from functools import lru_cache
from pathlib import Path

_STATE, _START = 0, 19  # fields of /proc/PID/stat after the command's closing parenthesis


def owner() -> str:
    """This process as `user@host:pid`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = str(os.getuid()) if hasattr(os, "getuid") else "somebody"
    return f"{user}@{platform.node()}:{os.getpid()}"


def signature() -> str:
    """This process; "" where the system does not tell."""
    return _signature(os.getpid())


def lives(signed: str) -> bool | None:
    """Whether a process still runs; None if that cannot be told from here."""
    place, _, rest = signed.rpartition("/")[0].rpartition("/")
    if not rest.isdecimal() or place != _place():
        return None
    return _signature(int(rest)) == signed


def _signature(number: int) -> str:
    place = _place()
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    if not place or fields[_STATE] in "ZX":  # ended, and not yet waited for
        return ""
    return f"{place}/{number}/{fields[_START]}"


@lru_cache
def _place() -> str:
    """This boot of this machine, and this namespace of process numbers; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
