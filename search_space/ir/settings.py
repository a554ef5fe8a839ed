"""Settings that a program may leave open: which engine, how many places, how deep a pipeline.

None changes a loop or an index, so programs that differ in nothing else are one program, and who
reads it asks which setting stands where (`families.kit.programs.skeleton` makes such programs).

Invariant: an open setting, number i of a program, is `-1 - i` where a number stands (real ones
are positive) and `#i` where an engine does.
"""

Setting = int | str
Settings = tuple[Setting, ...]


def open_number(number: int) -> int | None:
    """Which setting a number of a program stands for; None where it is a number."""
    return -1 - number if number < 0 else None


def open_engine(engine: str) -> int | None:
    """Which setting an engine of a program stands for; None where it is an engine, or none."""
    return int(engine[1:]) if engine.startswith("#") else None
