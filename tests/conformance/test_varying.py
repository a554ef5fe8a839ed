"""Every operator whose parameters may vary gives numpy's numbers at every size, compiled once.

The tests walk over the registry, so an operator is covered by its template's `varying`.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest

from tests.conformance.varying_checks import check_varying
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import space_of
from tilesmith.search_space.expressions.sizes import Size, samples
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.template import templates
from tilesmith.search_space.workloads.workload import Workload

TEXTS = [text for name in templates for text in templates[name].varying]
MOST = 37


def ranges(workload: Workload) -> tuple[Size, ...]:
    return tuple(Size(name, 1, MOST) for name in sorted(workload.sizes))


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_canonical_and_have_numbers(text: str) -> None:
    workload = Workload.parse(text)
    assert Workload.parse(workload.key) == workload
    for values in samples(ranges(workload)):
        assert workload.at(values).sizes == frozenset()


def code(config: Config) -> int:
    """About how much code a configuration is: its tiles, multiplied."""
    return math.prod(v for n, v in config.items() if isinstance(v, int) and "block" not in n)


@pytest.mark.parametrize("text", TEXTS)
def test_one_object_is_right_at_every_size(text: str) -> None:
    """A configuration with small tiles, as each length of a short one has code of its own."""
    workload, target = Workload.parse(text), host_target()
    sizes = ranges(workload)
    typical = {size.name: 19 + position for position, size in enumerate(sizes)}
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    space = space_of(workload.at(typical), target)
    config = min(space.sample(rng, 20), key=lambda c: (abs(code(c) - 6), c.key))
    check_varying(workload, sizes, typical, config, rng, samples(sizes, (16,)))
