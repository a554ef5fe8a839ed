"""What a bisection ends in: the part of the compiler at fault, and how it was told apart."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tilesmith.search_space.support.json_object import JsonObject

Part = Literal[
    "pass", "memory plan", "kernel", "schedule", "lowering", "code generation", "packing",
    "linking", "host operator", "unknown",
]  # fmt: skip
"""pass: the graph after it computes something else. memory plan: two tensors lie over each other.
kernel: every schedule of it is wrong, or it writes outside its result. schedule: some of its
configurations are wrong. lowering: the loop program of every configuration is wrong. code
generation: the loop programs are right, their code is not. packing: weights are laid out wrong.
linking: kernels are right one by one, and wrong as one program. host operator: what runs in
Python."""


@dataclass(frozen=True)
class FaultFinding(JsonObject):
    """The fault.

    Attributes:
        part: what kind of thing is at fault.
        name: which one: of a pass, kernel, knob or primitive.
        tensor: the first tensor that is wrong.
        sentence: all of it, for people.
        sources: the model's nodes that are concerned.
        details: what is known besides, by name.
    """

    part: Part
    name: str
    tensor: str
    sentence: str
    sources: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
