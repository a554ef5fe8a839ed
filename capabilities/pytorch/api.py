"""Models of PyTorch in the Python API.

    model = ts.torch_model(module, (x,))        what `tune`, `compile`, `simulate` take for a path
    compiled = ts.from_torch(module, (x,))      compiled, and called as the module is

Parameters are shared with PyTorch, not copied. PyTorch is optional: a function that needs it says
which extra installs it (`DependencyError`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from tilesmith.jobs.databases import BY_DEFAULT, Named
from tilesmith.jobs.keywords import takes
from tilesmith.jobs.requests.request import Asked, Request
from tilesmith.search_space.hardware.target import HOST, Target

if TYPE_CHECKING:
    import torch

    from tilesmith.capabilities.pytorch.model import TorchModel
    from tilesmith.capabilities.pytorch.module import CompiledModule
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.jobs.requests.request import Shapes


@takes()
def torch_model(
    module: "torch.nn.Module",
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> "TorchModel":
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
    from tilesmith.capabilities.pytorch.model import model_of

    return model_of(module, args, kwargs, dynamic_shapes)


@takes(Asked)
def from_torch(
    module: "torch.nn.Module",
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    target: str | Target = HOST,
    database: Named = BY_DEFAULT,
    require_tuned: bool = False,
    tune: str | None = None,
    **asked: Unpack[Asked],
) -> "CompiledModule":
    """Compile a module of PyTorch; what is returned is called as the module is.

    Sizes that `dynamic_shapes` lets vary may differ from call to call, within their ranges. Where
    each has an end (`Dim("rows", max=64)`) all of them are compiled for now, and nothing when the
    module is called; else each choice of sizes is compiled when it is first called with.

    Args:
        module, args, kwargs, dynamic_shapes: as `torch_model`.
        target, database, require_tuned, tune, asked: as `compile`.

    Raises:
        DependencyError, ModelError: as `torch_model`.
        InputError, CodegenError: as `compile`.
    """
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.jobs.background import tuning_of
    from tilesmith.jobs.compilation.compiling import build_executable, build_fixed

    model = torch_model(module, args, kwargs, dynamic_shapes=dynamic_shapes)
    from tilesmith.capabilities.pytorch.module import CompiledModule

    tuning = tuning_of(tune, database)
    request = Request(model, target, tuning.known, **asked).resolved()
    whole = None
    if model.bounded:
        varying = replace(request, shapes=model.bounded)
        executable = build_executable(varying, require_tuned)
        if not isinstance(executable, Executable):
            whole = tuning.followed(executable, varying)

    def fixed(shapes: "Shapes") -> "Executable":
        at_sizes = replace(request, shapes=shapes)
        return tuning.followed(build_fixed(at_sizes, require_tuned), at_sizes)

    return CompiledModule(model, fixed, whole)
