"""Versions that decide whether an old measurement still holds; raise one when its text applies.

They are kept with every record (`records.trials.toolchain`): a record of another version is
*stale*: it is reported, and measured again before it is believed. Raising one costs every user
that time, so leave them alone when only names, comments or the speed of our own code change.
"""

SPACE = "5"
"""Raise when a configuration means another program than before (templates, schedules, lowering)."""

CODEGEN = "8"
"""Raise when the same program becomes other native code (LLVM's own version is kept apart)."""

SIMULATOR = "12"
"""Raise when a simulator gives the same program another latency."""

FEATURES = "4"
"""Raise when a column of a simulator's features means something else: models learned from it are
of no use any more.
"""
