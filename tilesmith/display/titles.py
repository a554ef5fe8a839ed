"""What people call a job: the file of its model, or what it tunes."""

import shlex
from itertools import pairwise
from pathlib import PurePath


def title_of(command: str) -> str:
    """What a job tunes, in a few words: its models' file names, or its operators."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return command[:80]
    operators = [after for word, after in pairwise(words) if word == "--op"]
    if operators:
        more = f" and {len(operators) - 1} more" if len(operators) > 1 else ""
        return operators[0] + more
    after = words[words.index("tune") + 1 :] if "tune" in words else words
    if after and not after[0].startswith("-"):
        return PurePath(after[0]).name or after[0]
    return command[:80]
