"""Passes of MLIR's own that modules go through: fixed shapes for open ones, CHLO as StableHLO,
functions of complex numbers as those of real ones."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tilesmith.capabilities.stablehlo.bindings import context, first_fault, mlir, stablehlo
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.workloads.workload import shape_text

_REFINEMENT = (
    "builtin.module(func.func(stablehlo-legalize-composite-to-call),"
    "stablehlo-refine-arguments{{types={types}}},stablehlo-refine-shapes,"
    "func.func(stablehlo-canonicalize-dynamism))"
)
_LEGALISATION = (
    "builtin.module(func.func(chlo-legalize-to-stablehlo,stablehlo-complex-math-expander))"
)


@cache
def _registered() -> Any:
    """MLIR's pass manager, StableHLO's passes known to it."""
    from jaxlib.mlir import passmanager

    stablehlo().register_stablehlo_passes()
    return passmanager.PassManager


def with_shapes(
    module: Any, main: Any, names: Sequence[str], shapes: Mapping[str, tuple[int, ...]], model: str
) -> None:
    """Give the open dimensions of a module's inputs the sizes asked for, and what follows of them.

    Args:
        main: its main function.
        names: of that function's inputs, in order.
        shapes: by input name; those of inputs of fixed shape are not looked at.

    Raises:
        ModelError: a shape is missing, or does not fit the module.
    """
    ir = mlir()
    arguments = [ir.RankedTensorType(argument.type) for argument in main.arguments]
    if all(kind.has_static_shape for kind in arguments):
        return
    types = []
    for name, kind in zip(names, arguments, strict=True):
        if kind.has_static_shape:
            types.append(str(kind))
            continue
        form = [
            kind.get_dim_size(i) if not kind.is_dynamic_dim(i) else "?" for i in range(kind.rank)
        ]
        written = "x".join(map(str, form))
        if name not in shapes:
            raise ModelError(
                f"input '{name}' of '{model}' is {written}; give it a shape, for example "
                f"--shape {name}={written.replace('?', '1')}"
            )
        wanted = shapes[name]
        fits = len(wanted) == len(form) and all(
            f in ("?", size) for f, size in zip(form, wanted, strict=True)
        )
        if not fits or min(wanted, default=0) < 0:
            raise ModelError(
                f"input '{name}' of '{model}' is {written}; {shape_text(wanted)} does not fit it"
            )
        dims = "".join(f"{size}x" for size in wanted)
        types.append(f"tensor<{dims}{kind.element_type}>")
    _run(module, _REFINEMENT.format(types=",".join(types)), model)


def legalised(operation: Any, called: str, model: str) -> Any:
    """A module whose main function is an operation in plainer ones of StableHLO.

    Args:
        called: the operation's name; where it is not its own, the operation is a call of it.

    Raises:
        ModelError: there is no such form.
    """
    reads = ", ".join(f"%{i}: {operand.type}" for i, operand in enumerate(operation.operands))
    kinds = ", ".join(str(operand.type) for operand in operation.operands)
    gives = ", ".join(str(result.type) for result in operation.results)
    attributes = ", ".join(
        f"{name} = {operation.attributes[name]}"
        for name in (operation.attributes if operation.name == called else ())
    )
    names = ", ".join(f"%{i}" for i in range(len(operation.operands)))
    results = ", ".join(f"%r#{i}" for i in range(len(operation.results)))
    count = len(operation.results)
    text = (
        f"module {{ func.func @main({reads}) -> ({gives}) {{\n"
        f'%r:{count} = "{called}"({names}) {{{attributes}}} : ({kinds}) -> ({gives})\n'
        f"return {results} : {gives} }} }}"
    )
    with context():
        try:
            module = mlir().Module.parse(text)
        except (mlir().MLIRError, ValueError) as error:
            raise ModelError(f"{called} of '{model}': {first_fault(error)}") from error
    _run(module, _LEGALISATION, model)
    return module


def _run(module: Any, pipeline: str, model: str) -> None:
    try:
        with module.context:
            _registered().parse(pipeline).run(module.operation)
    except (mlir().MLIRError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"'{model}' cannot be brought to fixed shapes and plain operations: "
            f"{first_fault(error)}"
        ) from error
