"""Tells PyTorch of our backend once both are imported, whichever comes first.

An installed Tilesmith is found by its entry point; one that is run from its sources is not. Neither
`import tilesmith` nor `import torch` pays for the other: what is registered here is imported when a
graph is compiled, and where TorchDynamo is not imported yet, its import is waited for.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

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
    if _NAME not in registry._COMPILER_FNS:
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


class _Waiting(MetaPathFinder):
    """Finds nothing itself; sees the registry of backends being imported, once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader)
        return spec


class _Registering(Loader):
    """Another loader that, when it is done, registers the backend."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _register(module)
