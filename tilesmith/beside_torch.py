"""Tells PyTorch of our backend once both are imported, whichever comes first.

An installed Tilesmith is found by its entry point; one that is run from its sources is not. Neither
`import tilesmith` nor `import torch` pays for the other: what is registered here is imported when a
graph is compiled, and where TorchDynamo is not imported yet, its import is waited for.
"""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_REGISTRY = "torch._dynamo.backends.registry"
_NAME = "tilesmith"


def tell_torch() -> None:
    """Register the backend now, or as soon as TorchDynamo is imported."""
    registry = sys.modules.get(_REGISTRY)
    if registry is not None:
        _register(registry)
    elif not any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting())


def _register(registry: ModuleType) -> None:
    """Register the backend, unless PyTorch has it or imports us by an entry point to do so."""
    if _NAME not in registry._COMPILER_FNS and _NAME not in registry._BACKENDS:
        registry.register_backend(compiler_fn=_Backend(), name=_NAME)


class _Backend:
    """The backend of `tilesmith.torch_backend`, which is imported when it is first called."""

    def __call__(self, graph: Any, examples: Sequence[Any], **asked: Any) -> Callable[..., Any]:
        from tilesmith.torch_backend import tilesmith

        return tilesmith(graph, examples, **asked)

    def reset(self) -> None:
        """Part of `torch._dynamo.reset`, which throws away what was compiled."""
        backend = sys.modules.get("tilesmith.torch_backend")
        if backend is not None:
            backend.tilesmith.reset()


class _Waiting:
    """A finder that finds nothing itself; sees the registry of backends being imported, once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> "ModuleSpec | None":
        if fullname != _REGISTRY:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _register(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
