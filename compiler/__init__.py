"""The graph compiler: ONNX model -> graph -> tuned executable (see docs/architecture.md)."""

from __future__ import annotations

from importlib import import_module

_HOMES = {
    "Executable": "compiler.executable",
    "Graph": "compiler.graph",
    "ModelTask": "compiler.build",
    "build": "compiler.build",
    "extract_tasks": "compiler.build",
    "import_model": "compiler.onnx_import",
    "seed_weights": "compiler.seed_weights",
}

__all__ = [
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
