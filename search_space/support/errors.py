"""Every error Tilesmith raises on purpose, under one root.

An error's message is one sentence (or two) that says what was wrong, where, what is allowed and
what to do; the command line prints it as it is. It names options, which are read as Python's
arguments outside of a command line (`search_space.support.spoken`). Two branches decide the exit
code:

- `InputError`: what the user gave is wrong (exit code 2);
- `JobError`: the input was fine and the job could not be finished (exit code 1; that of
  `search_space.support.ending` where a signal stopped it).

Invariant: nothing outside this hierarchy reaches a user for a mistake of theirs; `assert` is kept
for our own invariants.
"""

from tilesmith.search_space.support.spoken import spoken


class TilesmithError(Exception):
    """Root of all deliberate errors."""

    exit_code: int = 1

    def __str__(self) -> str:
        return spoken(super().__str__())


class InputError(TilesmithError):
    """The user's input or usage is wrong."""

    exit_code: int = 2


class WorkloadError(InputError):
    """A workload names an unknown operator or parameter, or a value out of range."""


class TargetError(InputError):
    """A target is unknown, incomplete, or a setting of it is out of range."""


class ConfigError(InputError):
    """A configuration does not belong to its search space; the message names the broken limit."""


class ScheduleError(InputError):
    """A scheduling primitive does not apply to the stage or loop it names."""


class VerificationError(TilesmithError):
    """A program breaks a rule of the loop IR or a limit of its target."""


class ModelError(InputError):
    """A model file is missing, corrupt or unsupported, or an input does not fit the model."""


class DatabaseError(InputError):
    """A tuning database cannot be opened, is read-only, corrupt, or of a newer schema."""


class DependencyError(InputError):
    """An optional dependency is absent; the message names the extra that installs it."""


class JobError(TilesmithError):
    """A job on valid input failed."""


class CodegenError(JobError):
    """A verified program could not be turned into code for its target."""


class NoRoomError(CodegenError):
    """A target's memory holds a program's operands, but has no place for all it keeps at once."""

    exit_code = 2


class TranslationError(CodegenError):
    """A compiled function uses what compiled loops cannot do; the message names its line."""
