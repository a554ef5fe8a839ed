"""Search spaces whose every configuration has been measured: what regret is measured against.

A space is a workload's space on a target, some knobs held fixed so that it has 10,000 to 200,000
configurations. The truth is what a tuning job measures: on accelerators every instruction stream
played on the timeline, which takes minutes; the result is kept in a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host.machine import cpu_target
from tilesmith.codegen.programs.structures import space_of
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.results.versions import FEATURES, SIMULATOR, SPACE
from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import Judgement, judge, judges_as_measured, measure

_CHUNK = 2048


@dataclass(frozen=True)
class Case:
    """A workload on a target with some knobs held fixed."""

    target: str
    workload: str
    fixed: tuple[tuple[str, KnobValue], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.target}: {self.workload}"


_PRODUCT = (("block_order", "n,m,k"), ("tile_order", "nm"))
_CONVOLUTION = (("block_order", "o,y,c"), ("reduction_order", "c,r,s"))
"""Orders as the untuned default has them, held fixed so that a space can be judged in full."""

_TURNED = (("keys", "scalar|vector"), ("queries", "scalar"), ("strips", 4))
"""How queries and keys are turned, as the untuned default does it."""

_SCORES = (("s_order", "nm"), ("o_order", "nm"), ("pack", "head"), ("s_unroll", 4))
"""Orders and the scores' unrolling as the untuned default has them."""

CASES = (
    # A rank-8 adapter's second product on 128 tokens of width 768.
    Case("cpu", "matmul m=128 n=768 k=8 const=b", _PRODUCT),
    # Self-attention scores over a 32 x 32 map reduced to 8 channels, four images.
    Case("cpu", "matmul m=1024 n=1024 k=8 ta=1 batch=4", _PRODUCT),
    # ResNet-50's last stage but one.
    Case("cpu", "conv2d c=256 h=14 w=14 oc=256 kh=3 kw=3 pad=1 const=weight", _CONVOLUTION),
    # The middle of a diffusion model's network.
    Case("cpu", "conv2d c=1280 h=8 w=8 oc=1280 kh=3 kw=3 pad=1 const=weight", _CONVOLUTION),
    # A translation's tokens attending to those of the sentence it is of, eight heads.
    Case("cpu", "attention m=26 n=52 k=64 heads=8", _SCORES),
    # Odd sizes everywhere: no tile fits.
    Case("cpu", "matmul m=59 n=67 k=11 const=b", _PRODUCT),
    Case("trn1", "conv2d c=5 h=24 w=24 oc=22 kh=7 kw=7 stride=2 pad=3 const=weight"),
    # CLIP's text encoder: 77 tokens, 8 heads.
    Case("trn1", "attention m=77 n=77 k=64 heads=8 dtype=bfloat16", _TURNED),
    # The objects that a detection transformer asks for attending to each other: 100, 8 heads.
    Case("trn1", "attention m=100 n=100 k=32 heads=8 dtype=bfloat16", _TURNED),
)


class Table:
    """All legal configurations of a space, as measured and as judged; itself a judge.

    Args:
        latency: as measured, seconds, shape (n,); infinite for what cannot run.
        judged: as judged, seconds, shape (n,).
        features: shape (n, f); `verdict` are the columns that tell `judged`.
    """

    def __init__(
        self,
        space: SearchSpace,
        latency: NDArray[np.float64],
        judged: NDArray[np.float64],
        features: NDArray[np.float32],
        verdict: tuple[int, ...],
    ) -> None:
        self.space = space
        self.latency = latency
        self._judged = judged
        self._features = features
        self._verdict = verdict
        self._places = {config: place for place, config in enumerate(space)}
        assert len(self._places) == len(latency)

    @property
    def best(self) -> float:
        """The exhaustive optimum, seconds."""
        return float(np.min(self.latency[np.isfinite(self.latency)]))

    def __call__(self, workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        found = self._found(configs)
        bound = [""] * len(found)
        return Judgement(self._judged[found], self._features[found], bound, self._verdict)

    def measured(self, configs: Sequence[Config]) -> list[float]:
        """What a trial of each would record, seconds."""
        found: list[float] = self.latency[self._found(configs)].tolist()
        return found

    def _found(self, configs: Sequence[Config]) -> NDArray[np.int64]:
        return np.array([self._places[config] for config in configs], np.int64)


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


def described(name: str) -> Target:
    """A target by name; "cpu" is a described one, so that figures are alike on every machine."""
    if name == "cpu":
        return cpu_target("cpu", "avx512", "x86_64-unknown-linux-gnu")
    return load_target(name)


def measured_table(case: Case, folder: Path, jobs: int = 1) -> tuple[Workload, Target, Table]:
    """A case's workload, target and table, from `folder` if it was measured before; else measured
    by `jobs` processes.
    """
    workload, target, space = _space(case)
    digest = hashlib.sha256(
        f"{case}{target.to_json()}{SPACE}{SIMULATOR}{FEATURES}".encode()
    ).hexdigest()[:12]
    path = folder / f"{digest}.npz"
    if not path.exists():
        asked = [(case, start) for start in range(0, sum(1 for _ in space), _CHUNK)]
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            parts = list(pool.map(_measured_part, asked))
        folder.mkdir(parents=True, exist_ok=True)
        names = ("latency", "judged", "features")
        columns = {n: np.concatenate([part[n] for part in parts]) for n in names}
        np.savez(path, verdict=parts[0]["verdict"], **columns)
    with np.load(path) as stored:
        verdict = tuple(stored["verdict"].tolist())
        columns = {name: stored[name] for name in ("latency", "judged", "features")}
        return workload, target, Table(space, verdict=verdict, **columns)


def _space(case: Case) -> tuple[Workload, Target, SearchSpace]:
    target = described(case.target)
    workload = Workload.parse(case.workload)
    space = space_of(workload, target)
    return workload, target, narrowed(space, dict(case.fixed)) if case.fixed else space


def _measured_part(asked: tuple[Case, int]) -> dict[str, NDArray[Any]]:
    """One chunk of a case's space, as measured and as judged."""
    case, start = asked
    workload, target, space = _space(case)
    configs = list(islice(space, start, start + _CHUNK))
    judged = judge(workload, target, configs)
    measured = judged if judges_as_measured(target) else measure(workload, target, configs)
    return {
        "latency": np.nan_to_num(measured.latency, nan=np.inf),
        "judged": judged.latency,
        "features": judged.features,
        "verdict": np.array(judged.verdict, np.int64),
    }
