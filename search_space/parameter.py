"""`Parameter`: what an operator lets a workload choose, and which values are allowed."""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.search_space.errors import WorkloadError

ParameterValue = int | str

REQUIRED: None = None


@dataclass(frozen=True)
class Parameter:
    """A shape parameter or attribute of an operator.

    Attributes:
        name: as typed in a workload.
        meaning: one phrase with its unit or form.
        default: value when omitted; None means it must be given.
        minimum: least integer allowed (integers only).
        choices: allowed names (texts only); empty means any.
        text: whether a parameter without default is a text (a shape, a name), not an integer.
    """

    name: str
    meaning: str
    default: ParameterValue | None = REQUIRED
    minimum: int = 1
    choices: tuple[str, ...] = ()
    text: bool = False

    def check(self, value: ParameterValue | None, operator: str) -> ParameterValue:
        """`value` or the default; `WorkloadError` if missing or not allowed."""
        if value is None:
            value = self.default
        if value is None:
            raise WorkloadError(f"operator '{operator}' needs {self.name}= ({self.meaning})")
        if isinstance(value, int) and (self.text or isinstance(self.default, str)):
            value = str(value)  # a shape of rank one, as `Workload.parse` reads it
        integer = isinstance(self.default, int) or (
            self.default is None and not self.text and not self.choices
        )
        if integer and not isinstance(value, int):
            raise WorkloadError(f"operator '{operator}': {self.name}={value!r} is not an integer")
        if isinstance(value, int) and value < self.minimum:
            raise WorkloadError(
                f"operator '{operator}': {self.name}={value} is out of range; "
                f"at least {self.minimum}"
            )
        if self.choices and value not in self.choices:
            allowed = ", ".join(self.choices)
            raise WorkloadError(f"operator '{operator}': {self.name}={value}; one of {allowed}")
        return value
