"""`build_varying`: a model and ranges of its sizes become one executable for all of them.

    regions -> form (imported at points, checked at others) -> passes at each point -> one graph
            -> schedules of the middle point -> kernels -> variant

A region whose model is not one is cut where it changes, and each part tried again. Invariant: what
no variant serves is refused here, so that every size in the declared ranges runs.
"""

from collections.abc import Sequence
from dataclasses import replace

from tilesmith.compiler.assembly.nodes import RecipeStore
from tilesmith.compiler.assembly.weights import Constants
from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.driver.build import Schedules, scheduled
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.onnx.files.file import ModelFile
from tilesmith.compiler.recipe.variants import Variant, VaryingInfo, VaryingRecipe
from tilesmith.compiler.varying.assembly import assembled
from tilesmith.compiler.varying.binding import arena_bytes
from tilesmith.compiler.varying.forms import Form, form_at
from tilesmith.compiler.varying.kernels import settled_kernels
from tilesmith.compiler.varying.sizes.declared import Declared
from tilesmith.compiler.varying.sizes.fitting import Point
from tilesmith.compiler.varying.sizes.regions import (
    Region,
    checked_points,
    first_regions,
    points_in,
    regions_cut,
)
from tilesmith.compiler.varying.sizes.snapshot import taken
from tilesmith.compiler.varying.sizes.unify import NotAlikeError, unified
from tilesmith.search_space.support.errors import ModelError

_MOST_VARIANTS = 16


def build_varying(file: ModelFile, declared: Declared, schedules: Schedules) -> VaryingRecipe:
    """Compile a model for ranges of its sizes.

    Raises:
        ModelError: the model does not fit some of the sizes, or is another one in too many parts
            of the ranges.
        TargetError: models do not run on the target.
    """
    target = schedules.target
    backend = backend_of(target)
    if backend.measured_by != "hardware":
        raise ModelError(
            f"target '{target.name}' has no kernels for ranges of sizes; give each size one value, "
            f"for example --shape {declared.sizes[0].name}={declared.sizes[0].high}"
        )
    return _Builder(file, declared, schedules).recipe()


def typical(file: ModelFile, declared: Declared, schedules: Schedules) -> list[tuple[Point, Graph]]:
    """The sizes that schedules are chosen for, one choice for each region, and the model as kernels
    there: what a tuner tunes. Errors as `build_varying`."""
    snapshots = []
    for _, form in _Builder(file, declared, schedules).forms():
        target, options = schedules.target, schedules.options
        graph = scheduled(form.graphs[0], target, options.precision, options.bits, bodies=False)
        snapshots.append((form.snapshots[0].point, graph))
    return snapshots


class _Builder:
    def __init__(self, file: ModelFile, declared: Declared, schedules: Schedules) -> None:
        self.file, self.declared, self.schedules = file, declared, schedules
        self.store = RecipeStore(Constants(lends=False))
        self.graphs: dict[int, list[Graph]] = {}
        """What passes made of each form, by its identity."""

    def recipe(self) -> VaryingRecipe:
        variants = [self._variant(region, form) for region, form in self.forms()]
        schedules = self.schedules
        recipe = VaryingRecipe(
            self.first.name, schedules.target, schedules.options.threads, self.declared.sizes,
            self._infos(variants[-1], variants[-1].inputs),
            self._infos(variants[-1], variants[-1].outputs), tuple(variants),
            tuple(self.store.codes), self.store.constants.joined(), self.first.opsets,
            schedules.options.source,
        )  # fmt: skip
        return replace(recipe, variants=tuple(_reported(recipe, v) for v in variants))

    def forms(self) -> list[tuple[Region, Form]]:
        """Regions, and the form that the model has in each."""
        waiting = first_regions(self.declared.sizes, tuned=self.schedules.tuned)
        forms: list[tuple[Region, Form]] = []
        while waiting:
            region = waiting.pop(0)
            try:
                form = self._form(region, points_in(region))
                self._lower(region, form)
                forms.append((region, form))
            except _CutError as cut:
                if len(forms) + len(waiting) + 2 > _MOST_VARIANTS:
                    raise self._refused(region, cut.why) from cut
                waiting[:0] = regions_cut(region, cut.name, cut.below)
        return forms

    def _infos(self, variant: Variant, names: Sequence[str]) -> tuple[VaryingInfo, ...]:
        infos = []
        for name in names:
            info = variant.by_name[name].info
            shape = self.declared.inputs.get(name, info.shape)
            infos.append(replace(info, shape=shape))
        return tuple(infos)

    def _refused(self, region: Region, why: str) -> ModelError:
        where = ", ".join(str(size) for size in region)
        return ModelError(
            f"'{self.file.name}' cannot be compiled for {where}: {why}; give those sizes narrower "
            "ranges, or one value"
        )

    # -- one variant --------------------------------------------------------------------------
    def _variant(self, region: Region, form: Form) -> Variant:
        self.first = form.snapshots[0].graph
        graphs = self.graphs.pop(id(form))
        try:
            lowered, kernels = settled_kernels(graphs, form.fitter, region, self.schedules)
        except NotAlikeError as error:
            raise self._refused(region, str(error)) from error
        return assembled(region, form, lowered, kernels, self.store)

    def _form(self, region: Region, points: Sequence[Point]) -> Form:
        try:
            form = form_at(self.file, self.declared, region, points)
        except (NotAlikeError, ModelError) as error:
            raise self._cut(region, points, str(error)) from error
        for point in checked_points(region):
            try:
                form.check(taken(self.file, self.declared, point))
            except NotAlikeError as error:
                raise self._cut_at(region, form, point, str(error)) from error
        return form

    def _cut(self, region: Region, points: Sequence[Point], why: str) -> "_CutError | ModelError":
        """Where to cut a region whose points are not of one form: around its middle."""
        wide = max(region, key=lambda size: size.high / size.low)
        if wide.high == wide.low:
            return self._refused(region, why)
        at = points[0][wide.name]
        below = at if wide.low < at <= wide.high else wide.low + 1
        return _CutError(wide.name, below, why)

    def _cut_at(
        self, region: Region, form: Form, point: Point, why: str
    ) -> "_CutError | ModelError":
        """Where the form ends between a point that has it and one that has not."""
        good = dict(form.snapshots[0].point)
        good = {size.name: min(max(good[size.name], size.low), size.high) for size in region}
        if not self._fits(form, good):
            return self._cut(region, [good], why)
        for size in region:
            name = size.name
            if good[name] == point[name]:
                continue
            if self._fits(form, {**good, name: point[name]}):
                good[name] = point[name]
                continue
            fits, fails = good[name], point[name]
            while abs(fits - fails) > 1:
                between = (fits + fails) // 2
                if self._fits(form, {**good, name: between}):
                    fits = between
                else:
                    fails = between
            return _CutError(name, max(fits, fails), why)
        return self._refused(region, why)

    def _fits(self, form: Form, point: Point) -> bool:
        try:
            form.check(taken(self.file, self.declared, point))
        except NotAlikeError:
            return False
        return True

    # -- kernels ------------------------------------------------------------------------------
    def _lower(self, region: Region, form: Form) -> None:
        """Run passes at each point; `_CutError` where they make different graphs of the model."""
        target, options = self.schedules.target, self.schedules.options
        graphs = [
            scheduled(graph, target, options.precision, options.bits, bodies=False)
            for graph in form.graphs
        ]
        try:
            unified(graphs, form.fitter)
        except NotAlikeError as error:
            raise self._cut(region, [s.point for s in form.snapshots], str(error)) from error
        self.graphs[id(form)] = graphs


def _reported(whole: VaryingRecipe, variant: Variant) -> Variant:
    """The variant, its report saying what memory it needs at its largest sizes."""
    largest = {size.name: size.high for size in variant.region}
    report = replace(
        variant.report, peak_bytes=arena_bytes(whole, variant, largest),
        constant_bytes=whole.constants.size,
    )  # fmt: skip
    return replace(variant, report=report)


class _CutError(Exception):
    """A region has to be cut: `name` below `below` apart from the rest."""

    def __init__(self, name: str, below: int, why: str) -> None:
        super().__init__(why)
        self.name, self.below, self.why = name, below, why
