"""`Parameter`: what an operator lets a workload choose, and which values are allowed."""

from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.search_space.expressions.sizes import extent_parts, extent_text, parse_extent
from tilesmith.search_space.support.errors import WorkloadError

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
        varies: whether it may hold sizes (`search_space.ir.sizes`) that are known at run time only.
        positive: whether it is a shape, whose extents are 1 or more.
        of: the shape parameter that an axis is an axis of; it has to have that axis.
    """

    name: str
    meaning: str
    default: ParameterValue | None = REQUIRED
    minimum: int = 1
    choices: tuple[str, ...] = ()
    text: bool = False
    varies: bool = False
    positive: bool = False
    of: str = ""

    @classmethod
    def shape(cls, name: str, meaning: str, varies: bool = True) -> "Parameter":
        """A shape that must be given; a list of extents is one, too."""
        return cls(name, meaning, text=True, varies=varies, positive=True)

    def check(self, value: ParameterValue | None, operator: str) -> ParameterValue:
        """`value` or the default; `WorkloadError` if missing or not allowed."""
        if isinstance(value, str) and "[" in value:
            return self._symbolic(value, operator)
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

    def _symbolic(self, value: str, operator: str) -> ParameterValue:
        """A value with sizes in it, in canonical form; a number where they cancel."""
        if not self.varies:
            raise WorkloadError(
                f"operator '{operator}': {self.name}={value} cannot vary; give it numbers"
            )
        try:
            parts = extent_parts(value)
        except ValueError:
            raise WorkloadError(
                f"operator '{operator}': {self.name}={value} is no list of extents; "
                "write it like [batch]x12"
            ) from None
        text = "x".join(extent_text(parse_extent(part)) for part in parts)
        integer = not self.text and not isinstance(self.default, str)
        if integer and len(parts) > 1:
            raise WorkloadError(f"operator '{operator}': {self.name}={value} is not an integer")
        return self.check(int(text), operator) if integer and "[" not in text else text


def check_extents(operator: str, name: str, shape: Sequence[int]) -> None:
    """Raise `WorkloadError` for an extent below one."""
    if any(extent < 1 for extent in shape):
        raise WorkloadError(
            f"operator '{operator}': {name}={'x'.join(map(str, shape))} has an extent below 1"
        )
