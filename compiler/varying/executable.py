"""`VaryingExecutable`: a model compiled for ranges of its sizes, ready to run, save and load.

    model.run({"ids": ids_of_17}); model.run({"ids": ids_of_512})      # one model, no compiling

The sizes are read from the inputs' shapes; each choice of them is bound once (`binding`) and kept,
so that a size seen before costs a look into a table. Runs from several threads go on at once, as
of any executable; all sizes share their memory, which grows to the largest that was run. Invariant:
sizes outside their ranges are refused before anything is bound.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host.memory import aligned_copy
from tilesmith.compiler.artifact.artifact import read_recipe
from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.graph.graph import TensorInfo
from tilesmith.compiler.recipe.variants import VaryingInfo, VaryingRecipe
from tilesmith.compiler.runtime.compiled_model import CompiledModel
from tilesmith.compiler.runtime.executable import BoundRun, Executable, HostNode
from tilesmith.compiler.runtime.input_check import check_names
from tilesmith.compiler.runtime.pool import Pool
from tilesmith.compiler.runtime.workspace import Arrays
from tilesmith.compiler.varying.sizes.fitting import text_of
from tilesmith.compiler.varying.sizes.regions import typical
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.support.errors import ModelError

_KEPT = 64
"""Choices of sizes kept bound, those used last."""


class VaryingExecutable(CompiledModel):
    """See the module's docstring.

    Raises (on construction):
        TargetError: this machine cannot run code for the recipe's target.
    """

    recipe: VaryingRecipe

    def __init__(self, recipe: VaryingRecipe) -> None:
        self.recipe = replace(recipe, constants=aligned_copy(recipe.constants))
        self._lock = threading.RLock()
        backend_of(recipe.target).check(recipe.target)
        self._pool = Pool(recipe.threads)
        self._bound: OrderedDict[tuple[int, ...], Executable] = OrderedDict()
        self._by_shapes: dict[tuple[tuple[int, ...], ...], Executable] = {}
        self._names = tuple(info.name for info in recipe.inputs)

    # -- questions ------------------------------------------------------------------------------
    @property
    def inputs(self) -> tuple[VaryingInfo, ...]:
        """What `run` takes, in order; extents are numbers or formulas of the sizes."""
        return self.recipe.inputs

    @property
    def outputs(self) -> tuple[VaryingInfo, ...]:
        """What `run` gives, in order."""
        return self.recipe.outputs

    def at(self, sizes: Mapping[str, int]) -> Executable:
        """The model at one choice of sizes, an executable like any other.

        Raises:
            ModelError: a size is missing, unknown or out of its range.
        """
        self._check_sizes(sizes)
        with self._lock:
            return self._executable(tuple(sizes[size.name] for size in self.recipe.sizes))

    def infos_at(self, sizes: Mapping[str, int]) -> tuple[TensorInfo, ...]:
        """The inputs at one choice of sizes; errors as `at`."""
        from tilesmith.compiler.varying.binding import info_at

        self._check_sizes(sizes)
        return tuple(info_at(info, sizes) for info in self.inputs)

    @property
    def host_nodes(self) -> tuple[HostNode, ...]:
        """As `Executable.host_nodes`, at `typical` sizes."""
        return self.at(self.typical).host_nodes

    @property
    def typical(self) -> dict[str, int]:
        """Sizes in the middle of the region of the largest ones: schedules are chosen for them."""
        return typical(self.recipe.variants[-1].region)

    # -- running --------------------------------------------------------------------------------
    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """Run the model on arrays of any sizes in range; else as `Executable.run`."""
        return self._of(inputs).run(inputs)

    def bind(self, inputs: Arrays) -> BoundRun:
        """As `Executable.bind`."""
        return self._of(inputs).bind(inputs)

    def _of(self, inputs: Arrays) -> Executable:
        """What runs inputs of these shapes."""
        try:
            shapes = tuple([inputs[name].shape for name in self._names])
        except (KeyError, AttributeError):
            shapes = tuple(np.shape(inputs[n]) for n in self._names if n in inputs)
        executable = self._by_shapes.get(shapes)
        if executable is None:
            sizes = self._sizes_of(inputs)
            with self._lock:
                executable = self._executable(sizes)
                if len(self._by_shapes) > 4 * _KEPT:
                    self._by_shapes.clear()
                self._by_shapes[shapes] = executable
        return executable

    def _executable(self, sizes: tuple[int, ...]) -> Executable:
        if sizes in self._bound:
            self._bound.move_to_end(sizes)
            return self._bound[sizes]
        from tilesmith.compiler.varying.binding import bound

        point = {size.name: v for size, v in zip(self.recipe.sizes, sizes, strict=True)}
        variant = next((v for v in self.recipe.variants if v.serves(point)), None)
        if variant is None:
            raise ModelError(
                f"'{self.title}' has no variant for {text_of(point)}; compile it again"
            )
        binding = bound(self.recipe, variant, point)
        self._bound[sizes] = Executable(binding.recipe, binding.held, self._pool)
        if len(self._bound) > _KEPT:
            self._bound.popitem(last=False)
            self._by_shapes.clear()
        return self._bound[sizes]

    # -- sizes ----------------------------------------------------------------------------------
    def _check_sizes(self, sizes: Mapping[str, int]) -> None:
        known = {size.name: size for size in self.recipe.sizes}
        if unknown := [name for name in sizes if name not in known]:
            raise ModelError(
                f"'{self.title}' has no size '{unknown[0]}'; its sizes are {', '.join(known)}"
            )
        for name, size in known.items():
            if name not in sizes:
                raise ModelError(f"the size '{name}' of '{self.title}' is missing")
            if not size.low <= sizes[name] <= size.high:
                raise ModelError(
                    f"the size '{name}' of '{self.title}' is {sizes[name]}; it was compiled for "
                    f"{size.low} to {size.high}"
                )

    def _sizes_of(self, inputs: Arrays) -> tuple[int, ...]:
        """The sizes that the inputs' shapes say."""
        check_names(self.title, inputs, self._names)
        extents: dict[str, tuple[int, str]] = {}
        rest: list[tuple[str, int, Expr, int]] = []
        for info in self.inputs:
            shape = np.shape(inputs[info.name])
            if info.shape is not None:
                self._check_rank(info, shape)
                for axis, (extent, value) in enumerate(zip(info.shape, shape, strict=True)):
                    if str(extent) in self._ranges:
                        self._take(extents, info.name, axis, str(extent), value)
                    else:
                        rest.append((info.name, axis, extent, value))
        point = {name: value for name, (value, _) in extents.items()}
        for name, axis, extent, value in rest:
            if (wanted := int(extent.evaluate(point))) != value:
                formula = "" if extent.constant is not None else f" ({extent}) at {text_of(point)}"
                raise ModelError(
                    f"axis {axis} of input '{name}' of '{self.title}' is {value}; "
                    f"{wanted}{formula} is expected"
                )
        return tuple(point[size.name] for size in self.recipe.sizes)

    @property
    def _ranges(self) -> dict[str, tuple[int, int]]:
        return {size.name: (size.low, size.high) for size in self.recipe.sizes}

    def _check_rank(self, info: VaryingInfo, shape: tuple[int, ...]) -> None:
        if info.shape is not None and len(shape) != len(info.shape):
            wanted = "x".join(str(extent) for extent in info.shape)
            raise ModelError(
                f"input '{info.name}' of '{self.title}' has {len(shape)} axes; "
                f"{len(info.shape)} are expected ({wanted})"
            )

    def _take(
        self, extents: dict[str, tuple[int, str]], name: str, axis: int, size: str, value: int
    ) -> None:
        """Note what an axis says of a size."""
        low, high = self._ranges[size]
        where = f"axis {axis} ({size}) of input '{name}'"
        if not low <= value <= high:
            raise ModelError(
                f"{where} of '{self.title}' is {value}; the model was compiled for {low} to {high}"
            )
        first = extents.setdefault(size, (value, where))
        if first[0] != value:
            raise ModelError(
                f"{where} of '{self.title}' is {value}, but {first[1]} is {first[0]}; both are "
                f"'{size}' and have to agree"
            )

    # -- files ----------------------------------------------------------------------------------
    @classmethod
    def loads(cls, data: bytes) -> Self:
        recipe = read_recipe(data)
        if not isinstance(recipe, VaryingRecipe):
            raise ModelError(f"the artifact of '{recipe.title}' is of a model of fixed sizes")
        return cls(recipe)


def load(
    path: str | Path, *, mapped: bool = True, trusted_key: str | Path | None = None
) -> Executable | VaryingExecutable:
    """Read what `save` wrote.

    Args:
        mapped: whether weights may stay in the file, shared by all who load it, as long as nobody
            overwrites it in place.
        trusted_key: as `compiler.artifact.artifact.read_recipe`.

    Raises:
        ModelError: missing, damaged, not an artifact, of a newer format, or not signed so.
        TargetError: it needs an instruction set this machine does not have.
    """
    recipe = read_recipe(Path(path), mapped=mapped, trusted_key=trusted_key)
    return VaryingExecutable(recipe) if isinstance(recipe, VaryingRecipe) else Executable(recipe)
