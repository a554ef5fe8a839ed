"""What a model family is here: a module, arguments for it, and where it is registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

SEED = 7


@dataclass(frozen=True, eq=False)
class Case:
    """A module and named arguments for its `forward`."""

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]


FAMILIES: dict[str, Callable[[], Case]] = {}
"""Builders by name, in the order they are written."""


def family(build: Callable[[], Case]) -> Callable[[], Case]:
    """Register a builder; what it makes repeats: weights and arguments come from one seed."""

    def seeded() -> Case:
        torch.manual_seed(SEED)
        case = build()
        case.module.eval().requires_grad_(False)
        return case

    FAMILIES[build.__name__.replace("_", "-")] = seeded
    return seeded


def tokens(vocabulary: int, *shape: int) -> Tensor:
    """Random token ids."""
    return torch.randint(3, vocabulary, shape)
