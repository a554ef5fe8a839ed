"""A loop that waits for a fixed point ends in a sentence where there is none."""

from __future__ import annotations

import pytest

from tilesmith.compiler.rewriting.rounds import Rounds
from tilesmith.search_space.support.errors import VerificationError


def test_as_many_rounds_as_allowed_and_not_one_more() -> None:
    rounds = Rounds("the pass turn of 'g'", 3)
    for _ in range(3):
        rounds.another()
    with pytest.raises(VerificationError, match=r"turn of 'g' does not come to an end.* 3 rounds"):
        rounds.another()
