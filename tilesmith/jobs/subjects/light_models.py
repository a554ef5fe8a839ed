"""Reference networks out of the installed onnx package, with seeded random weights.

ONNX ships well-known networks as "light" graphs whose weights are constant fills. They are real
graphs with real shapes, need no download, and with random weights of sane scale they compute
numbers worth comparing: what demonstrations, benchmarks and tests need.
"""

from pathlib import Path

from tilesmith.search_space.support.errors import ModelError


def light_model_names() -> list[str]:
    """Names `save_light_model` knows, such as "resnet50"."""
    return sorted(path.stem.removeprefix("light_") for path in _folder().glob("light_*.onnx"))


def save_light_model(name: str, path: str | Path, seed: int = 0) -> Path:
    """Write the network `name` with seeded random weights to `path`; returns `path`.

    Raises:
        ModelError: onnx ships no such network.
    """
    import onnx

    from tilesmith.compiler.graph.seed_weights import seed_weights

    source = _folder() / f"light_{name}.onnx"
    if not source.exists():
        known = ", ".join(light_model_names())
        raise ModelError(f"onnx ships no light model '{name}'; one of {known} is expected")
    onnx.save(seed_weights(onnx.load(str(source)), seed), str(path))
    return Path(path)


def _folder() -> Path:
    import onnx.backend.test

    return Path(onnx.backend.test.__file__).parent / "data" / "light"
