"""A recipe as the plan of a library: what `capabilities.c_library.code` makes objects of.

Tensors of the caller's become regions of their own, so that kernels work where the caller has them.
"""

from collections.abc import Sequence

from tilesmith.capabilities.c_library.code.plan import (
    ARENA,
    FIRST_END,
    WEIGHTS,
    CallStage,
    Check,
    End,
    LibraryPlan,
    LibraryTensor,
    RegionBody,
    address,
    aligned,
)
from tilesmith.capabilities.c_library.packaging.files import write_files
from tilesmith.capabilities.c_library.packaging.names import check_prefix, prefix_of
from tilesmith.capabilities.c_library.plans.library_parts import kernel_of, refuse_hosts
from tilesmith.capabilities.c_library.plans.varying_library import plan_of_varying
from tilesmith.compiler.backends.cpu.linking import calls_of
from tilesmith.compiler.backends.shipping import Library, LibraryRequest, Shippable, package_files
from tilesmith.compiler.onnx.inference.inference import DTYPE_NUMBERS
from tilesmith.compiler.recipe.areas import starts_of
from tilesmith.compiler.recipe.program import (
    DeviceStep,
    HostStep,
    IndexCheck,
    KernelStep,
    Place,
    Recipe,
    TensorRef,
    kernels_of,
)
from tilesmith.compiler.recipe.variants import VaryingRecipe
from tilesmith.search_space.support.errors import ModelError


def plan_of(recipe: Recipe, prefix: str, about: str, file: str = "") -> LibraryPlan:
    """The plan of a recipe without host nodes.

    Raises:
        ModelError: parts of it run on the host, in Python.
    """
    places = _Places(recipe, _copies(recipe))
    steps = [step for step in recipe.steps if not isinstance(step, HostStep)]
    names = {step.code: step.workload.split()[0] for step in kernels_of(steps)}
    used = sorted(names)
    functions = {code: number for number, code in enumerate(used)}
    codes = [recipe.codes[code] for code in used]
    return LibraryPlan(
        prefix, recipe.name, about, recipe.target, recipe.threads,
        tuple(end.tensor for end in places.inputs), tuple(end.tensor for end in places.outputs),
        (RegionBody(places.inputs, places.outputs, tuple(_stages(steps, functions, places))),),
        tuple(kernel_of(names[code], recipe.codes[code]) for code in used),
        max((code.shared_bytes for code in codes), default=0),
        max((code.local_bytes for code in codes), default=0),
        places.arena_bytes, tuple(recipe.pieces()), file,
    )  # fmt: skip


def _copies(recipe: Recipe) -> dict[str, TensorRef]:
    """Outputs that are an input or a weight as it is, by name: the host hands them on.

    Raises:
        ModelError: the host does more than that.
    """
    ends = {ref.info.name for ref in recipe.inputs}
    copies: dict[str, TensorRef] = {}
    hosts = []
    for step in recipe.steps:
        if not isinstance(step, HostStep):
            continue
        there = step.operator == "Identity" and (
            step.inputs[0].info.name in ends or step.inputs[0].place.region == "constant"
        )
        if there and step.outputs[0].place.region == "value" and step.outputs[0].info.known:
            copies[step.outputs[0].info.name] = step.inputs[0]
        else:
            hosts.append((step.name, step.operator))
    refuse_hosts(recipe.title, hosts)
    return copies


class _Places:
    """Where tensors are, as addresses of a plan."""

    def __init__(self, recipe: Recipe, copies: dict[str, TensorRef]) -> None:
        self._recipe, self._copies = recipe, copies
        names = {ref.info.name: n for n, ref in enumerate(recipe.inputs)}
        updates = {u.output: names[u.input] for u in recipe.updates}
        self._updated = {recipe.inputs[n].info.name for n in updates.values()}
        callers = [r for r in recipe.inputs if r.place.region == "caller"]
        starts = starts_of([r.info.nbytes for r in callers])
        self._callers = aligned(recipe.arena_bytes)
        self.arena_bytes = self._callers + starts[-1]
        self._direct: list[tuple[str, int, int, int]] = []
        """Region of the recipe, start, end, region of the plan."""
        self.inputs = tuple(self._end(r, n) for n, r in enumerate(recipe.inputs))
        count = len(self.inputs)
        outputs = [self._end(r, count + n) for n, r in enumerate(recipe.outputs)]
        self.outputs = tuple(
            self._output(end, ref, names, updates)
            for end, ref in zip(outputs, recipe.outputs, strict=True)
        )

    def _end(self, ref: TensorRef, number: int) -> End:
        info, place = ref.info, ref.place
        tensor = LibraryTensor(info.name, info.dtype, info.dims, DTYPE_NUMBERS[info.dtype])
        if place.region == "value":
            return End(tensor, 0)
        known = any(region == place.region and s == place.offset for region, s, *_ in self._direct)
        private = place.region == "caller" or info.name in self._recipe.private
        direct = private and not ref.stored and not known and tensor.nbytes > 0
        home = self._home(place)
        if direct:
            end = place.offset + tensor.nbytes
            self._direct.append((place.region, place.offset, end, FIRST_END + number))
        written = info.name in self._updated
        return End(tensor, home, direct, ref.stored, written=written)

    def _output(
        self, end: End, ref: TensorRef, names: dict[str, int], updates: dict[str, int]
    ) -> End:
        """With where it comes from, if that is not its own memory."""
        name, source = ref.info.name, -1
        copied = self._copies.get(name)
        if not end.home and (copied.info.name if copied else name) in names:
            source = names[copied.info.name if copied else name]
        elif copied is not None:
            return End(end.tensor, self._home(copied.place), stored=copied.stored)
        elif not end.home and end.tensor.nbytes:
            raise ModelError(
                f"'{self._recipe.title}' cannot become a library: its output '{name}' is no array "
                "of kernels; compile the model to a .tsm"
            )
        direct, region = end.direct, ref.place
        for number, one in enumerate(self._recipe.inputs):
            if region.region != "value" and one.place == region and self.inputs[number].direct:
                direct, source = False, number
        return End(end.tensor, end.home, direct, end.stored, source, updates.get(name, -1))

    def _home(self, place: Place) -> int:
        """Where a place is when it is not in the caller's memory."""
        match place.region:
            case "arena":
                return address(ARENA, place.offset)
            case "caller":
                return address(ARENA, self._callers + place.offset)
            case "constant":
                return address(WEIGHTS, place.offset)
            case "none":
                return 0
        raise ModelError(
            f"'{self._recipe.title}' cannot become a library: a kernel works in the region "
            f"'{place.region}'; bind all sizes with --shape"
        )

    def address(self, place: Place) -> int:
        """Where a place is in a run."""
        for region, start, end, number in self._direct:
            if region == place.region and start <= place.offset < end:
                return address(number, place.offset - start)
        return self._home(place)


def _stages(
    steps: Sequence[DeviceStep], functions: dict[int, int], places: _Places
) -> list[CallStage]:
    """Steps in runs, at whose start alone something has to be checked."""
    runs: list[tuple[list[Check], list[DeviceStep]]] = []
    for step in steps:
        checks = step.checks if isinstance(step, KernelStep) else ()
        if checks or not runs:
            runs.append(([_check(check, places) for check in checks], []))
        runs[-1][1].append(step)
    return [
        CallStage(tuple(checks), calls_of(inside, functions, places.address))
        for checks, inside in runs
    ]


def _check(check: IndexCheck, places: _Places) -> Check:
    ref = check.indices
    dtype = ref.stored or ref.info.dtype
    return Check(check.node, places.address(ref.place), dtype, ref.info.elements, check.extents)


def emit(recipe: Shippable, request: LibraryRequest) -> Library:
    """Write a recipe as a library; errors as `plan_of`, `plan_of_varying` and
    `capabilities.c_library.packaging.files`."""
    assert isinstance(recipe, Recipe | VaryingRecipe)
    prefix = check_prefix(request.prefix) if request.prefix else prefix_of(_name(recipe))
    file = request.weights_file
    given = (prefix, _about(recipe), file.name if file else "")
    if isinstance(recipe, Recipe):
        plan = plan_of(recipe, *given)
    else:
        plan = plan_of_varying(recipe, *given)
    write_files(plan, request.kind, request.output)
    return Library(
        str(request.output), str(request.header), str(file) if file else None, request.kind, prefix,
        request.output.stat().st_size, plan.weight_bytes, plan.workspace_bytes, plan.team,
        tuple((size.name, size.low, size.high) for size in plan.sizes),
        str(package_files(request.output)[0]),
    )  # fmt: skip


def _name(recipe: Recipe | VaryingRecipe) -> str:
    """Of the model's file, for exporters call all graphs the same; else of the model."""
    file = recipe.source.rsplit(" sha256:", 1)[0]
    return file.rsplit(".", 1)[0] or recipe.name


def _about(recipe: Recipe | VaryingRecipe) -> str:
    target = f"{recipe.target.text('isa.processor')} with {recipe.target.text('isa.name')}"
    source = f" of {recipe.source}" if recipe.source else ""
    return (
        f"Model '{recipe.name}'{source}, compiled by Tilesmith for "
        f"{recipe.target.text('isa.triple')}, {target}; precision {recipe.report.precision}"
    )
