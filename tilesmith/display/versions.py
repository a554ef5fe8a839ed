"""What `tilesmith --version` says: this installation, and what its results depend on."""

import platform
from collections.abc import Iterator
from importlib import metadata

_LIBRARIES = ("llvmlite", "numpy", "onnx", "sqlalchemy", "xgboost", "xgboost-cpu")
_OPTIONAL = ("onnxruntime", "openvino", "torch", "jax", "ray", "ortools", "psycopg")


def lines() -> Iterator[str]:
    """The line of this version of the product, as scripts read it, then what lies beneath it."""
    from tilesmith.search_space.results import versions

    yield f"tilesmith, version {metadata.version('tilesmith')}"
    yield f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield (
        f"measurements of: space {versions.SPACE}, code generator {versions.CODEGEN}, simulator "
        f"{versions.SIMULATOR}"
    )
    yield ", ".join(_found(_LIBRARIES))
    if others := list(_found(_OPTIONAL)):
        yield f"beside it: {', '.join(others)}"


def _found(packages: tuple[str, ...]) -> Iterator[str]:
    for package in packages:
        try:
            yield f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            continue
