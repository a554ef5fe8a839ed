"""The signals that end a command: which they are, what is said of each, and the exit codes.

A command that a signal ended exits as shells report it: with 128 and the signal's number, so 130
for Ctrl-C, 143 for SIGTERM, 129 for a terminal that was closed (SIGHUP). Results that were finished
before are kept all the same; a script that waits for a whole result must not take half of it.
"""

import signal

STOPPED: dict[int, str] = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "stopped by SIGTERM",
    signal.SIGHUP: "stopped by SIGHUP",
}
"""What is said of a command that a signal ends."""


def heeded() -> list[int]:
    """The signals that end this process now: not SIGHUP under `nohup`, which ignores it."""
    return [
        number
        for number in STOPPED
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    ]


def exit_code(reason: int | str) -> int:
    """Return the exit code of a command that a signal ended, by the signal's number or name; 1 for
    any other reason."""
    names = {signal.Signals(number).name: number for number in STOPPED}
    number = names.get(reason, 0) if isinstance(reason, str) else reason
    return 128 + number if number in STOPPED else 1
