"""Models of StableHLO and JAX in the Python API.

    model = ts.jax_model(function, x)        what `tune`, `compile`, `simulate` take for a path
    compiled = ts.from_jax(function, x)      compiled, and called as the function is

Arrays are shared with JAX, not copied. JAX is optional: a function that needs it says which extra
installs it (`DependencyError`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from tilesmith.jobs.databases import BY_DEFAULT, Named, here
from tilesmith.jobs.keywords import takes
from tilesmith.jobs.requests.request import Asked, Request
from tilesmith.search_space.hardware.target import HOST, Target

if TYPE_CHECKING:
    from tilesmith.capabilities.stablehlo.importer import StableHloModel
    from tilesmith.capabilities.stablehlo.traced import CompiledFunction, JaxModel


def from_stablehlo(module: str | bytes | Path) -> "StableHloModel":
    """A StableHLO module as a model: what `tune`, `compile` and `simulate` take for a path.

    Args:
        module: MLIR text, bytecode or a portable artifact; or the path of a file that holds one.

    Raises:
        ModelError: the file cannot be read. What is wrong with the module itself, or not supported,
            is said where the model is used.
    """
    from tilesmith.capabilities.stablehlo.importer import model_of

    return model_of(module)


def jax_model(function: Callable[..., Any], *examples: Any) -> "JaxModel":
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
    from tilesmith.capabilities.stablehlo.traced import JaxModel

    return JaxModel(function, examples)


@takes(Asked)
def from_jax(
    function: Callable[..., Any],
    *examples: Any,
    target: str | Target = HOST,
    database: Named = BY_DEFAULT,
    require_tuned: bool = False,
    **asked: Unpack[Asked],
) -> "CompiledFunction":
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
    from tilesmith.capabilities.stablehlo.traced import CompiledFunction
    from tilesmith.jobs.compilation.compiling import build_fixed

    request = Request(model, target, here(database), **asked)
    executable = build_fixed(request.resolved(), require_tuned)

    return CompiledFunction(model, executable)
