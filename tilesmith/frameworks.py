"""Models of other frameworks in the Python API: of StableHLO, JAX and PyTorch.

    model = ts.torch_model(module, (x,))        what `tune`, `compile`, `simulate` take for a path
    compiled = ts.from_torch(module, (x,))      compiled, and called as the module is

Parameters and arrays are shared with the framework, not copied. The frameworks are optional: a
function that needs one says which extra installs it (`DependencyError`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from tilesmith.jobs.databases import BY_DEFAULT, Named, here
from tilesmith.jobs.keywords import takes
from tilesmith.jobs.request import Asked, Request
from tilesmith.search_space.target import HOST, Target

if TYPE_CHECKING:
    import torch

    from tilesmith.compiler.pytorch.model import TorchModel
    from tilesmith.compiler.pytorch.module import CompiledModule
    from tilesmith.compiler.stablehlo.function import CompiledFunction
    from tilesmith.compiler.stablehlo.importer import StableHloModel
    from tilesmith.compiler.stablehlo.traced import JaxModel


def from_stablehlo(module: str | bytes | Path) -> StableHloModel:
    """A StableHLO module as a model: what `tune`, `compile` and `simulate` take for a path.

    Args:
        module: MLIR text, bytecode or a portable artifact; or the path of a file that holds one.

    Raises:
        ModelError: the file cannot be read. What is wrong with the module itself, or not supported,
            is said where the model is used.
    """
    from tilesmith.compiler.stablehlo.importer import model_of

    return model_of(module)


def jax_model(function: Callable[..., Any], *examples: Any) -> JaxModel:
    """A function of JAX as a model: what `tune`, `compile` and `simulate` take for a path.

    Arrays that the function holds become weights, shared with JAX's own; arguments are inputs, so
    let it hold its parameters: `jax_model(lambda x: network(parameters, x), x)`.

    Args:
        function: of trees of arrays.
        examples: what it is called with; shapes and dtypes count, numbers do not.

    Raises:
        DependencyError: JAX is not installed.
        ModelError: the function cannot be traced. What it uses that is not supported is said where
            the model is used.
    """
    from tilesmith.jobs.extras import required

    required("jax", "jaxlib", extra="jax")
    from tilesmith.compiler.stablehlo.traced import JaxModel

    return JaxModel(function, examples)


@takes(Asked)
def from_jax(
    function: Callable[..., Any],
    *examples: Any,
    target: str | Target = HOST,
    database: Named = BY_DEFAULT,
    require_tuned: bool = False,
    **asked: Unpack[Asked],
) -> CompiledFunction:
    """Compile a function of JAX; what is returned is called as the function is.

    Args:
        function, examples: as `jax_model`.
        target, database, require_tuned, asked: as `compile`.

    Raises:
        DependencyError: JAX is not installed.
        ModelError: the function cannot be traced, or uses what is not supported.
        InputError, CodegenError: as `compile`.
    """
    model = jax_model(function, *examples)
    from tilesmith.compiler.stablehlo.function import CompiledFunction
    from tilesmith.jobs.compiling import build_fixed

    request = Request(model, target, here(database), **asked)
    executable = build_fixed(request.resolved(), require_tuned)

    return CompiledFunction(model, executable)


@takes()
def torch_model(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> TorchModel:
    """A module of PyTorch as a model: what `tune`, `compile` and `simulate` take for a path.

    The module is traced by `torch.export`; its parameters are shared and not copied.

    Args:
        module: in the mode it should run in: call its `eval()` first, unless you train.
        args, kwargs: examples of what it is called with.
        dynamic_shapes: sizes that may vary, as `torch.export.export` takes them.

    Raises:
        DependencyError: PyTorch or onnxscript is not installed.
        ModelError: the module cannot be traced, or not be written in ONNX operators.
    """
    from tilesmith.jobs.extras import required

    required("torch", "onnxscript", extra="torch")
    from tilesmith.compiler.pytorch.model import model_of

    return model_of(module, args, kwargs, dynamic_shapes)


@takes(Asked)
def from_torch(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    target: str | Target = HOST,
    database: Named = BY_DEFAULT,
    require_tuned: bool = False,
    **asked: Unpack[Asked],
) -> CompiledModule:
    """Compile a module of PyTorch; what is returned is called as the module is.

    Sizes that `dynamic_shapes` lets vary may differ from call to call, within their ranges. Where
    each has an end (`Dim("rows", max=64)`) all of them are compiled for now, and nothing when the
    module is called; else each choice of sizes is compiled when it is first called with.

    Args:
        module, args, kwargs, dynamic_shapes: as `torch_model`.
        target, database, require_tuned, asked: as `compile`.

    Raises:
        DependencyError, ModelError: as `torch_model`.
        InputError, CodegenError: as `compile`.
    """
    from tilesmith.compiler.executable import Executable
    from tilesmith.jobs.compiling import build_executable, build_fixed

    model = torch_model(module, args, kwargs, dynamic_shapes=dynamic_shapes)
    from tilesmith.compiler.pytorch.module import CompiledModule

    request = Request(model, target, here(database), **asked).resolved()
    whole = None
    if model.bounded:
        found = build_executable(replace(request, shapes=model.bounded), require_tuned)
        whole = None if isinstance(found, Executable) else found
    return CompiledModule(
        model,
        lambda shapes: build_fixed(replace(request, shapes=shapes), require_tuned),
        whole,
    )
