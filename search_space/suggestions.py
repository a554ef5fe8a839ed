"""What to say of a name that nobody knows: the ones like it, and the ones there are.

One sentence for every kind of name: commands, operators, parameters, targets, settings, dtypes.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilesmith.search_space.errors import InputError


def close(name: str, known: Iterable[str]) -> list[str]:
    """The known names that look like `name`, the likest first; at most three."""
    from difflib import get_close_matches

    by_lower = {one.lower(): one for one in known}
    lower = name.lower()
    found = get_close_matches(lower, by_lower, n=3, cutoff=0.6)
    begins = [one for one in by_lower if len(lower) > 1 and one.startswith(lower)]
    return [by_lower[one] for one in dict.fromkeys([*found[:2], *begins[:2]])][:3]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence, "; did you mean 'matmul'?"; "" where nothing looks like it."""
    found = close(name, known)
    return f"; did you mean {' or '.join(repr(one) for one in found)}?" if found else ""


def unknown(
    kind: str,
    name: str,
    known: Iterable[str],
    error: type[InputError] = InputError,
    also: Iterable[str] = (),
) -> InputError:
    """The error for an unknown name.

    Args:
        kind: what it names ("operator").
        known: the names there are, as they are to be listed.
        also: other spellings, which are suggested too.
    """
    names = list(known)
    meant = did_you_mean(name, [*names, *also])
    return error(f"unknown {kind} '{name}'; one of {', '.join(names)} is expected{meant}")
