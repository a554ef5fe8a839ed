"""`VaryingArena`: which tensors lie in each other and which behind each other, at any sizes.

Offsets are planned at the largest sizes of a region; what is kept of that is an order. Invariant:
of two tensors that are alive at the same step, one is behind the other, directly or by way of
others.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tilesmith.capabilities.c_library.code.plan import DerivedTensor, aligned
from tilesmith.compiler.recipe.memory import Interval, plan_arena
from tilesmith.compiler.recipe.variants import AliasPart, Variant, touched_by
from tilesmith.search_space.expressions.expression import Expr, as_expr
from tilesmith.search_space.expressions.sizes import limits
from tilesmith.search_space.support.errors import VerificationError


def ties_of(variant: Variant) -> Iterable[tuple[str, str, Expr]]:
    """What lies in what: tensor, the one it lies in, bytes behind its start."""
    for part in variant.parts:
        if isinstance(part, AliasPart):
            yield from part.ties


@dataclass
class Ties:
    """Tensors at fixed distances of each other, and from which step to which they are needed."""

    members: dict[str, Expr]
    """Distance of each behind the first."""
    low: tuple[Expr, ...] = ()
    high: tuple[Expr, ...] = ()
    first: int = 0
    last: int = 0


class VaryingArena:
    """See the module's docstring.

    Args:
        held: tensors that are elsewhere.
        copied: tensors that every run fills before its first step.

    Attributes:
        ties: tensors that share memory, in the order of their offsets.
        behind: of each, the numbers of those that it is directly behind.
    """

    def __init__(self, variant: Variant, held: Collection[str], copied: Sequence[str]) -> None:
        self.variant, self._copied = variant, copied
        self.ties = self._tied(held)
        self._order()

    def _tied(self, held: Collection[str]) -> list[Ties]:
        """Tensors in the arena, those that lie in each other together."""
        nbytes = {
            t.info.name: t.nbytes
            for t in self.variant.tensors
            if t.device and t.constant is None and t.info.name not in held
        }
        near: dict[str, list[tuple[str, Expr]]] = {name: [] for name in nbytes}
        for name, base, offset in ties_of(self.variant):
            if name in nbytes and base in nbytes:
                near[base].append((name, offset))
                near[name].append((base, -offset))
        groups: list[Ties] = []
        seen: set[str] = set()
        for name in nbytes:
            if name in seen:
                continue
            members, waiting = {name: as_expr(0)}, [name]
            while waiting:
                one = waiting.pop()
                for other, offset in near[one]:
                    distance = members[one] + offset
                    if members.setdefault(other, distance) != distance:
                        raise VerificationError(f"'{other}' lies elsewhere than behind '{one}'")
                    if other not in seen:
                        waiting.append(other)
                    seen.add(other)
            seen.update(members)
            low = self._outermost(members.values(), -1)
            high = self._outermost((d + nbytes[n] for n, d in members.items()), 1)
            groups.append(Ties(members, low, high))
        return self._lives(groups)

    def _outermost(self, values: Iterable[Expr], sign: int) -> tuple[Expr, ...]:
        """Those that may be the least (sign -1) or greatest (sign 1)."""
        kept: list[Expr] = []
        for value in dict.fromkeys(values):
            if any(self._never_less(sign * (other - value)) for other in kept):
                continue
            kept = [o for o in kept if not self._never_less(sign * (value - o))]
            kept.append(value)
        return tuple(kept)

    def _never_less(self, difference: Expr) -> bool:
        return limits(difference, self.variant.region)[0] >= 0

    def _lives(self, ties: list[Ties]) -> list[Ties]:
        """From when to when each is needed."""
        variant = self.variant
        end = len(variant.parts)
        steps: dict[str, list[int]] = {}
        for name in (*variant.inputs, *self._copied):
            steps.setdefault(name, []).extend((-1, end))
        for name in variant.outputs:
            steps.setdefault(name, []).append(end)
        for number, part in enumerate(variant.parts):
            for name in touched_by(part):
                steps.setdefault(name, []).append(number)
        alive = []
        for tie in ties:
            known = [step for name in tie.members for step in steps.get(name, ())]
            if known:
                tie.first, tie.last = min(known), max(known)
                alive.append(tie)
        return alive

    def _order(self) -> None:
        """In the order of their offsets at the largest sizes."""
        high = {size.name: size.high for size in self.variant.region}
        intervals = []
        for number, tie in enumerate(self.ties):
            low = min(int(value.evaluate(high)) for value in tie.low)
            nbytes = max(int(value.evaluate(high)) for value in tie.high) - low
            intervals.append(Interval(f"{number:06}", nbytes, tie.first, tie.last))
        offsets = plan_arena(intervals).offsets
        order = sorted(range(len(self.ties)), key=lambda n: (offsets[f"{n:06}"], n))
        self.ties = [self.ties[n] for n in order]
        self.behind = [self._behind(number) for number in range(len(order))]

    def _behind(self, number: int) -> tuple[int, ...]:
        """Earlier groups alive together with this one, but those that others lie behind."""
        meets = [n for n in range(number) if _meet(self.ties[n], self.ties[number])]
        return tuple(
            n for n in meets if not any(n < o and _meet(self.ties[n], self.ties[o]) for o in meets)
        )

    def most_bytes(self, held: Iterable[DerivedTensor]) -> int:
        """Of activations at any sizes, behind what is held."""
        region = self.variant.region
        first = sum(aligned(limits(one.nbytes, region)[1]) for one in held)
        ends: list[int] = []
        for tie, behind in zip(self.ties, self.behind, strict=True):
            start = max([first, *(ends[n] for n in behind)])
            most = max(limits(h - low, region)[1] for h in tie.high for low in tie.low)
            ends.append(start + aligned(most))
        return max([first, *ends])


def _meet(one: Ties, two: Ties) -> bool:
    """Whether both are alive at some step."""
    return one.first <= two.last and two.first <= one.last
