"""Units that a chain may take, to choose among."""

import itertools
from collections.abc import Callable, Iterator, Sequence

from tilesmith.families.lpu.codegen.dataflow import Chain, ChainValue, Product, Shuffle, Transpose
from tilesmith.families.lpu.codegen.scheduling.rigid import Choice

When = Callable[[Product, int], tuple[int, bool]]
"""About when a product may begin on a plane (the first of two in float16), and whether its weights
have to be loaded there: of equals the one that has them is better."""


def choices(chain: Chain, types: dict[ChainValue, str], when: When) -> list[Choice]:
    """Units a chain may take: hemispheres of its products, the side of its SXM steps.

    Of a hemisphere's planes a product takes the one it may begin on first.
    """
    products = [n for n, step in enumerate(chain.steps) if isinstance(step, Product)]
    if not products:
        return [Choice({}, east) for east in (True, False)]
    shuffled = any(isinstance(s, Shuffle | Transpose) for s in chain.steps)
    choices = []
    for sides in _hemispheres(chain, products):
        taken = _planes(chain, types, dict(zip(products, sides, strict=True)), when)
        if taken is not None:
            choices.append(Choice(taken, sides[0]))
            if shuffled:
                choices.append(Choice(taken, not sides[0]))
    return choices


def _hemispheres(chain: Chain, products: Sequence[int]) -> Iterator[tuple[bool, ...]]:
    """Sides that products may be on: what a plane gives goes on to one of the other side."""
    before = {}
    for number in products:
        step = chain.steps[number]
        added = step.add.step if isinstance(step, Product) and step.add is not None else -1
        before[number] = added if added in products else -1
    for sides in itertools.product((False, True), repeat=len(products)):
        side = dict(zip(products, sides, strict=True))
        if all(other < 0 or side[other] != side[number] for number, other in before.items()):
            yield sides


def _planes(
    chain: Chain, types: dict[ChainValue, str], sides: dict[int, bool], when: When
) -> dict[int, int] | None:
    """A plane for every product (the first of two in float16), all different; None: too few."""
    planes: dict[int, int] = {}
    for number, east in sides.items():
        step = chain.steps[number]
        assert isinstance(step, Product), "these are"
        firsts = (2 * east,) if types[step.moving] == "float16" else (2 * east, 2 * east + 1)
        left = [plane for plane in firsts if plane not in planes.values()]
        if not left:
            return None
        ready = {plane: when(step, plane) for plane in left}
        planes[number] = min(left, key=ready.__getitem__)
    return planes


def weights_key(step: Product) -> object:
    """What tells installed weights apart."""
    return (step.weights.tensor, step.weights.numbers.tobytes(), step.k)
