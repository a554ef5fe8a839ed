"""What a family of targets tells the loop IR of its machine: one value for each family.

A family registers itself from its own folder of schedules; the verifier, schedules
and code generators ask the value, and nobody else knows a family's name:

    family_of(target).memories(target)["psum"].bank

Targets of one family differ in numbers, which are facts of the target; what a family has of
memories, engines and instructions is alike for all of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tilesmith.search_space.hardware.memory import Memory
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.intrinsics import IntrinsicSpec
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.support.registry import Registry


def _nothing(_: Target) -> dict[str, int]:
    return {}


def _no_memories(_: Target) -> dict[str, Memory]:
    return {}


@dataclass(frozen=True)
class Family:
    """The machine of a family, as programs see it.

    Attributes:
        name: as targets give it.
        scopes: memories that buffers may be in.
        engines: that blocks may be assigned to; none where a program has no engines.
        intrinsics: its instructions as specifications, those tried first first.
        memories: of a target: those on chip with a limit, by scope.
        limits: of a target: the largest dimensions of instructions, by the names that
            `IntrinsicSpec.limits` uses.
    """

    name: str
    scopes: tuple[str, ...]
    engines: tuple[str, ...] = ()
    intrinsics: tuple[IntrinsicSpec, ...] = ()
    memories: Callable[[Target], Mapping[str, Memory]] = field(default=_no_memories)
    limits: Callable[[Target], Mapping[str, int]] = field(default=_nothing)

    def intrinsic(self, name: str) -> IntrinsicSpec | None:
        """The instruction of a name, if there is one."""
        return next((spec for spec in self.intrinsics if spec.name == name), None)


families: Registry[Family] = Registry(
    "family of targets", "tilesmith.search_space.schedules", TargetError, room="schedules"
)


def family_of(target: Target) -> Family:
    """The family of a target.

    Raises:
        TargetError: there is none of that name; those that there are, are named.
    """
    return families[target.family]
