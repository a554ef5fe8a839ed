"""Search spaces whose every configuration has been judged: what regret is measured against.

A space is a workload's space on a target, some knobs held fixed so that it has 10,000 to 200,000
configurations. Judging all of them takes the simulator a while; the result is kept in a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codegen.host import host_target
from search_space.config import Config, KnobValue
from search_space.space import SearchSpace, Subspace
from search_space.target import Target, load_target
from search_space.template import template_of
from search_space.workload import Workload
from simulator import judge

_CHUNK = 4096


@dataclass(frozen=True)
class Case:
    """A workload on a target with some knobs held fixed."""

    target: str
    workload: str
    fixed: tuple[tuple[str, KnobValue], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.target}: {self.workload}"


CASES = (
    Case(
        "cpu",
        "conv2d c=64 h=56 w=56 oc=64 kh=3 kw=3 pad=1 const=weight",
        (
            ("input_layout", "NCHW16c"),
            ("output_layout", "NCHW16c"),
            ("block_order", "o,y,c"),
            ("c_block", 1),
        ),
    ),
    Case("cpu", "matmul m=1 n=4096 k=4096 const=b"),
    Case(
        "cpu",
        "matmul m=64 n=2048 k=64 batch=12",
        (("pack_b", "panels"), ("tile_order", "nm"), ("k_unroll", 4)),
    ),
)


@dataclass(frozen=True)
class Judged:
    """Rows of a judged table, as a judge gives them."""

    latency: NDArray[np.float64]
    features: NDArray[np.float32]
    bound: list[str]


class Table:
    """All legal configurations of a space with latencies and features; itself a judge."""

    def __init__(
        self, space: SearchSpace, latency: NDArray[np.float64], features: NDArray[np.float32]
    ) -> None:
        self.space = space
        self.latency = latency
        self._features = features
        self._rows: list[NDArray[np.int64]] = []
        count = 0
        for subspace in space.subspaces:
            legal = subspace.legal(subspace.rows(0, subspace.cardinality))
            numbers = np.full(subspace.cardinality, -1, np.int64)
            numbers[legal] = count + np.arange(legal.sum())
            count += int(legal.sum())
            self._rows.append(numbers)
        assert count == len(latency)

    @property
    def best(self) -> float:
        """The exhaustive optimum, seconds."""
        return float(np.min(self.latency[np.isfinite(self.latency)]))

    def __call__(self, workload: Workload, target: Target, configs: Sequence[Config]) -> Judged:
        found = np.array([self._number(config) for config in configs], np.int64)
        return Judged(self.latency[found], self._features[found], [""] * len(found))

    def _number(self, config: Config) -> int:
        subspace = self.space.subspace_of(config)
        row = subspace.row(config)[0]
        place = 0
        for index, radix in zip(row.tolist(), subspace.radices.tolist(), strict=True):
            place = place * radix + index
        return int(self._rows[self.space.subspaces.index(subspace)][place])


def narrowed(space: SearchSpace, fixed: Mapping[str, KnobValue]) -> SearchSpace:
    """The part of a space with these values of the knobs that have them; other subspaces are left
    out.
    """
    parts = []
    for subspace in space.subspaces:
        held = {knob.name: fixed[knob.name] for knob in subspace.knobs if knob.name in fixed}
        legal = all(held[k.name] in k.values for k in subspace.knobs if k.name in held)
        if legal and all(fixed.get(name, value) == value for name, value in subspace.fixed):
            parts.append(_with_fixed(subspace, held))
    return SearchSpace(tuple(parts))


def _with_fixed(subspace: Subspace, held: Mapping[str, KnobValue]) -> Subspace:
    knobs = tuple(knob for knob in subspace.knobs if knob.name not in held)
    return replace(subspace, fixed=(*subspace.fixed, *held.items()), knobs=knobs)


def judged_table(case: Case, folder: Path) -> tuple[Workload, Target, Table]:
    """A case's workload, target and table, from `folder` if it was judged before."""
    target = host_target() if case.target == "cpu" else load_target(case.target)
    workload = Workload.parse(case.workload)
    space = template_of(workload.operator).space(workload, target)
    space = narrowed(space, dict(case.fixed)) if case.fixed else space
    digest = hashlib.sha256(f"{case}{target.to_json()}".encode()).hexdigest()[:12]
    path = folder / f"{digest}.npz"
    if not path.exists():
        configs = list(space)
        parts = [
            judge(workload, target, configs[i : i + _CHUNK]) for i in range(0, len(configs), _CHUNK)
        ]
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(
            path,
            latency=np.concatenate([part.latency for part in parts]),
            features=np.concatenate([part.features for part in parts]),
        )
    with np.load(path) as stored:
        return workload, target, Table(space, stored["latency"], stored["features"])
