"""What a profile says of itself: what its times leave out, and how far they are to be believed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilesmith.compiler.recipe.program import Recipe
    from tilesmith.compiler.runtime.profiling import Profile

_SHARED = 0.85
"""Share of one core below which a profile says that it was not alone."""

_OFTEN = 0.5
"""Interruptions of a run from which on the usual run was interrupted."""
_UNSTEADY = 0.1
"""Spread of the middle half of the runs from which a profile says so."""


def notes(recipe: "Recipe", profile: "Profile") -> tuple[str, ...]:
    """Sentences about what was looked at."""
    said = []
    if profile.threads < recipe.threads:
        said.append(
            f"{profile.threads} of {recipe.threads} threads had a core for themselves and took "
            "part; on more cores times are others"
        )
    if profile.every > 1:
        said.append(
            f"of the iterations of loops one in {profile.every} was looked at, each in its turn: "
            "kernels there take little more than a look; what the others took together is shared "
            "out as in those"
        )
    if profile.spread > _UNSTEADY:
        said.append(
            f"even the runs that count differ by {profile.spread:.0%}: something else runs on "
            "these cores, and times of operators are as unsteady; 'tilesmith doctor' looks at "
            "the noise"
        )
    return tuple(said)


def shared_core(had: float, breaks: float, total_us: float) -> tuple[str, ...]:
    """A sentence where others ran on the cores meanwhile.

    The system takes a core away for milliseconds at once. A run that is shorter has it to itself,
    or is one of the slowest, which do not count; a longer one has others' turns in its time.

    Args:
        had: seconds of processor time in a second, of all threads; none of it while others run.
        breaks: how often the core was taken away from a run, on average.
    """
    if had >= _SHARED:
        return ()
    said = f"this process had {had:.0%} of a core while it was profiled: others run on it"
    if breaks < _OFTEN:
        return (
            f"{said}. Runs are shorter than their turns: those that count had the core to "
            "themselves, and only the caches were shared",
        )
    return (
        f"{said}, and a run by itself takes about {had * total_us:.0f} us; shares and peaks are as "
        "far off",
    )
