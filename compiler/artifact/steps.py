"""The recipe of a model of fixed sizes, read from its artifact.

Invariants of what is read: every tensor lies in its region; no move of any iteration, and no flag
or number that a loop looks at, lies outside its region; nothing in a loop writes among the
constants; inputs that are written where they are lie in their region one behind the other, as
`areas.starts_of` places them, and fill it: an address made of an offset in it is inside a caller's
array.
"""

from collections.abc import Sequence
from typing import Any

from tilesmith.compiler.artifact.reading import (
    CHIPS,
    THREADS,
    ManifestReader,
    is_whole,
    read_sources,
)
from tilesmith.compiler.graph.graph import ENDLESS, TensorInfo
from tilesmith.compiler.recipe.areas import starts_of
from tilesmith.compiler.recipe.layouts import normal, physical_bytes
from tilesmith.compiler.recipe.program import (
    NOWHERE,
    BranchStep,
    DeviceStep,
    HeldTensor,
    HostStep,
    IndexCheck,
    KernelStep,
    LoopStep,
    MoveStep,
    Place,
    Recipe,
    Step,
    TensorRef,
    Update,
)
from tilesmith.search_space.expressions.dtypes import STORED, size_of
from tilesmith.search_space.support.errors import WorkloadError


class StepReader(ManifestReader):
    """Reads a model of fixed sizes."""

    def fixed(self) -> Recipe:
        """The whole artifact."""
        manifest = self.manifest
        steps = tuple(self._outer_step(step) for step in manifest["steps"])
        inputs, outputs = (tuple(map(self._ref, manifest[end])) for end in ("inputs", "outputs"))
        self._check_made(outputs, inputs, steps)
        return Recipe(
            *self.head(), inputs, outputs, steps, self.codes, self.weights(),
            self.regions["arena"], self.opsets(), self.report(manifest["report"]),
            str(manifest["source"]),
            private=frozenset(map(str, manifest.get("private", ()))),
            updates=self._updates(inputs, outputs),
            tensors=tuple(self._held(row, len(steps)) for row in manifest.get("tensors", ())),
            chips=max(1, self.natural(manifest.get("chips", 1), "chips", CHIPS)),
        )  # fmt: skip

    # -- tensors --------------------------------------------------------------------------------
    def _dims(self, shape: Any) -> tuple[int, ...] | None:
        return None if shape is None else tuple(self.natural(e, "an extent") for e in shape)

    def _ref(self, raw: Any) -> TensorRef:
        dims = self._dims(raw["shape"])
        name = str(raw["name"])
        info = TensorInfo(name, self.dtype(name, raw["dtype"]), dims)
        stored = self.stored(name, raw)
        size = info.elements * size_of(stored or info.dtype) if info.known else 0
        place = self.place(raw["place"], size)
        if place.region in ("arena", "constant") and not info.known:
            raise self.damaged(f"tensor '{name}' has no shape")
        return TensorRef(info, place, stored)

    def _held(self, row: Any, steps: int) -> HeldTensor:
        """Where a tensor lies for those who look into a run."""
        name, dtype, shape, region, offset, layout, step = row
        dtype = self.dtype(name, dtype)
        if not isinstance(step, int) or not -1 <= step < steps:
            raise self.damaged(f"tensor '{name}' is written by step {step!r} of {steps}")
        dims, size = self._dims(shape), 0
        if region != "value":
            if dims is None or dtype not in STORED:
                raise self.damaged(f"tensor '{name}' has no shape")
            try:
                size = physical_bytes(str(layout), dims, dtype)
            except (WorkloadError, IndexError) as error:
                raise self.damaged(f"tensor '{name}' has the layout {layout!r}") from error
        place = self.place([region, offset], size)
        return HeldTensor(str(name), dtype, dims, place, normal(str(layout)), step)

    def _check_made(
        self, outputs: Sequence[TensorRef], inputs: Sequence[TensorRef], steps: Sequence[Step]
    ) -> None:
        """Refuse inputs that lie nowhere, and outputs that nothing on the host makes."""
        written = {ref.info.name for ref in inputs} | {
            ref.info.name for step in steps if isinstance(step, HostStep) for ref in step.outputs
        }
        for ref in (*inputs, *outputs):
            lost = ref.place.region == "value" and ref.info.name not in written
            if lost or ref.place.region == "none":
                raise self.damaged(f"the tensor '{ref.info.name}' lies nowhere")

    def _updates(
        self, inputs: Sequence[TensorRef], outputs: Sequence[TensorRef]
    ) -> tuple[Update, ...]:
        """Every pair names an input and an output of one kind."""
        pairs = [(str(one), str(two)) for one, two in self.manifest.get("updates", [])]
        given = {ref.info.name: ref for ref in inputs}
        results = {ref.info.name: ref for ref in outputs}
        for name, result in pairs:
            if name not in given or result not in results:
                raise self.damaged(f"it updates '{name}' by '{result}'")
            before, after = given[name].info, results[result].info
            if (before.dtype, before.shape) != (after.dtype, after.shape) or not before.known:
                raise self.damaged(f"'{result}' is of another kind than '{name}', which it updates")
        if min(len({pair[end] for pair in pairs}) for end in (0, 1)) < len(pairs):
            raise self.damaged("it updates an input twice, or by an output of another")
        placed = [given[name] for name, _ in pairs if given[name].place.region == "caller"]
        starts = starts_of([ref.info.nbytes for ref in placed])
        if tuple(ref.place.offset for ref in placed) != starts[:-1]:
            raise self.damaged("inputs that are written where they are lie elsewhere than expected")
        if self.regions["caller"] != starts[-1]:
            size = self.manifest.get("caller_bytes")
            raise self.damaged(f"caller_bytes is {size!r}; {starts[-1]} are updated")
        if len(placed) != sum(ref.place.region == "caller" for ref in inputs):
            raise self.damaged("an input lies with those that are updated, and is not")
        return tuple(Update(name, result) for name, result in pairs)

    # -- steps ----------------------------------------------------------------------------------
    def _outer_step(self, raw: Any) -> Step:
        if "host" in raw:
            return HostStep(
                str(raw["host"]), str(raw["operator"]), self.proto(raw),
                tuple(map(self._ref, raw["inputs"])), tuple(map(self._ref, raw["outputs"])),
                read_sources(raw),
            )  # fmt: skip
        step = self._step(raw)
        if isinstance(step, MoveStep) and step.counter != NOWHERE:
            raise self.damaged("a move counts with no loop")
        return step

    def _step(self, raw: Any) -> DeviceStep:
        if "kernel" in raw:
            name, workload, config, origin, code = self.kernel(raw)
            given = raw["arguments"]
            places = tuple(map(self.argument, given, self.needs(code, len(given))))
            checks = tuple(map(self._check, raw.get("checks", ())))
            threads = self.natural(raw.get("threads", 0), "threads", THREADS)
            return KernelStep(
                name, workload, config, origin, code, places, checks, threads, read_sources(raw)
            )
        if "move" in raw:
            return self._move(raw)
        if "branch" in raw:
            first, second = (tuple(map(self._inner_step, branch)) for branch in raw["steps"])
            if any(isinstance(s, MoveStep) and s.counter != NOWHERE for s in (*first, *second)):
                raise self.damaged("a move counts with no loop")
            name, test = str(raw["branch"]), self._looked_at(raw["test"], 1)
            return BranchStep(name, test, (first, second), read_sources(raw))
        return self._loop(raw)

    def _inner_step(self, raw: Any) -> DeviceStep:
        step = None if "host" in raw else self._step(raw)
        if step is None or (isinstance(step, KernelStep) and step.checks):
            raise self.damaged("a loop or branch has steps on the host")
        return step

    def _check(self, raw: Any) -> IndexCheck:
        indices = self._ref(raw["indices"])
        if indices.place.region != "arena":
            raise self.damaged(f"the indices '{indices.info.name}' lie at {indices.place.region}")
        given = raw["extents"] if "extents" in raw else [raw["extent"]]
        extents = tuple(self.natural(extent, "an extent") for extent in given)
        if not extents or indices.info.elements % len(extents):
            raise self.damaged(f"the indices '{indices.info.name}' are of {len(extents)} axes")
        return IndexCheck(str(raw["node"]), indices, extents)

    def _loop(self, raw: Any) -> LoopStep:
        trips = raw["trips"]
        if not is_whole(trips) or not 0 <= trips <= ENDLESS:
            raise self.damaged(f"a loop runs {trips!r} times")
        loop = LoopStep(
            str(raw["loop"]),
            trips,
            self._looked_at(raw["limit"], 8, optional=True),
            self._looked_at(raw["test"], 1, optional=True),
            self._looked_at(raw["counter"], 8, written=True),
            tuple(map(self._inner_step, raw["steps"])),
            read_sources(raw),
        )
        self._check_moves(loop)
        return loop

    def _move(self, raw: Any) -> MoveStep:
        nbytes = raw["move"]
        *source, source_step = raw["source"]
        *target, target_step = raw["target"]
        if not all(map(is_whole, (nbytes, source_step, target_step))) or nbytes < 0:
            raise self.damaged(f"a move of {nbytes!r} bytes")
        counter = self._looked_at(raw["counter"], 8, optional=True)
        if (source_step or target_step) and counter == NOWHERE:
            raise self.damaged("a move goes on, and nothing counts")
        return MoveStep(
            self._looked_at(source, nbytes), self._looked_at(target, nbytes, written=True), nbytes,
            source_step, target_step, counter, str(raw.get("name", "")),
        )  # fmt: skip

    def _check_moves(self, loop: LoopStep) -> None:
        """Every move that counts with the loop stays in its region to the last iteration."""
        for move in loop.steps:
            if not isinstance(move, MoveStep) or move.counter == NOWHERE:
                continue
            if move.counter != loop.counter:
                raise self.damaged("a move counts with another loop than its own")
            for place, step in (
                (move.source, move.source_step),
                (move.target, move.target_step),
            ):
                last = place.offset + step * max(0, loop.trips - 1)
                if last < 0 or last + move.nbytes > self.regions[place.region]:
                    raise self.damaged(f"a loop moves what ends behind the {place.region}")

    def _looked_at(
        self, raw: Any, nbytes: int, optional: bool = False, written: bool = False
    ) -> Place:
        """A place that a loop, branch or move uses by itself."""
        region, offset = raw
        allowed = ("arena",) if written else ("arena", "constant")
        if optional and (region, offset) == ("none", 0):
            return NOWHERE
        if region not in allowed:
            raise self.damaged(f"a loop or branch names the region {region!r}")
        if not is_whole(offset) or not 0 <= offset <= self.regions[region] - nbytes:
            raise self.damaged(f"a loop or branch uses what lies behind the {region}")
        return Place(region, offset)
