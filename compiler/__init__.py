"""The graph compiler: ONNX model -> graph -> tuned executable (see docs/architecture.md)."""

from __future__ import annotations

from importlib import import_module

_HOMES = {
    "BuildOptions": "tilesmith.compiler.build",
    "Executable": "tilesmith.compiler.executable",
    "Graph": "tilesmith.compiler.graph",
    "ModelTask": "tilesmith.compiler.build",
    "build": "tilesmith.compiler.build",
    "extract_tasks": "tilesmith.compiler.build",
    "import_model": "tilesmith.compiler.onnx.importer",
    "seed_weights": "tilesmith.compiler.seed_weights",
}

__all__ = [
    "BuildOptions",
    "Executable",
    "Graph",
    "ModelTask",
    "build",
    "extract_tasks",
    "import_model",
    "seed_weights",
]


def __getattr__(name: str) -> object:
    """Names on first use: onnx is not worth loading for one who only runs artifacts."""
    if name not in _HOMES:
        raise AttributeError(f"module 'compiler' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
