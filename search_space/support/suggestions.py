"""What to say of a name that nobody knows: the ones like it, and the ones there are.

One sentence for every kind of name: commands, operators, parameters, targets, settings, dtypes.
"""

from collections.abc import Iterable

from tilesmith.search_space.support.errors import InputError

MOST_LISTED = 12
"""Names that a sentence lists; of more only where none of them can have been meant."""


def close(name: str, known: Iterable[str]) -> list[str]:
    """The known names that look like `name`, the likest first; at most three."""
    from difflib import get_close_matches

    by_lower = {one.lower(): one for one in known}
    lower = name.lower()
    matches = get_close_matches(lower, by_lower, n=3, cutoff=0.6)
    begins = [one for one in by_lower if len(lower) > 1 and one.startswith(lower)]
    begins += [one for one in by_lower if one.endswith(f".{lower}")]
    return [by_lower[one] for one in dict.fromkeys([*matches[:2], *begins[:2]])][:3]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence, "; did you mean 'matmul'?"; "" where nothing looks like it."""
    matches = close(name, known)
    return f"; did you mean {' or '.join(repr(one) for one in matches)}?" if matches else ""


def instead(name: str, known: Iterable[str], intro: str, outro: str = "") -> str:
    """The end of a sentence on a name that nobody knows: what was meant, and what there is.

    Short lists are given whole; of a long one what looks like the name, else what begins as it does
    before the dot, else all, or, where there are dots, what stands before them.

    Args:
        intro: what stands before a list ("it has").
        outro: where all of a long list are to be found.
    """
    names = list(known)
    meant = did_you_mean(name, names)
    if len(names) <= MOST_LISTED:
        return f"; {intro} {', '.join(names) or 'none at all'}{meant}"
    where = f" ({outro})" if outro else ""
    if meant:
        return f"{meant}{where}"
    group = name.partition(".")[0] + "."
    like = [one for one in names if one.startswith(group)]
    if not like and any("." in one for one in names):
        like = list(dict.fromkeys(_group(one) for one in names))
    return f"; {intro} {', '.join(like or names)}{where}"


def _group(name: str) -> str:
    first, dot, _ = name.partition(".")
    return f"{first}.*" if dot else first


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
    if meant and len(names) > MOST_LISTED:
        return error(f"unknown {kind} '{name}'{meant}")
    return error(f"unknown {kind} '{name}'; one of {', '.join(names)} is expected{meant}")
