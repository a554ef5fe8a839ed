"""A compiled model behind HTTP, by Starlette and uvicorn: a server is not Tilesmith's to write.

    pip install starlette uvicorn
    python examples/serve.py model.tsm [--port 8000]            # or model.onnx

    curl localhost:8000/model
    curl localhost:8000/run -d '{"inputs": {"x": [[0.5, 1.5]]}}'

Handlers that are plain functions run in Starlette's threads, and runs of a model from many threads
go on at once, each in memory of its own: nothing here takes a lock. Several processes
(`--workers 4`) share the weights of one artifact, which each of them maps.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import InputError, TilesmithError

try:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route
except ImportError:
    sys.exit("this example serves by Starlette and uvicorn: pip install starlette uvicorn")

PATH = "TILESMITH_SERVED"
"""The environment's name for the model, for workers that uvicorn starts."""


def application(model: Any) -> Starlette:
    """What answers requests with a model (`ts.load`, `ts.compile`)."""
    dtypes = {info.name: to_numpy(info.dtype) for info in model.inputs}

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            arrays = {name: np.asarray(v, dtypes.get(name)) for name, v in inputs.items()}
        return {name: plain(array) for name, array in model.run(arrays).items()}

    async def answer(request: Request) -> JSONResponse:
        try:
            asked = await request.json()
            outputs = await run_in_threadpool(run, dict(asked["inputs"]))
        except (InputError, ValueError, TypeError, KeyError) as error:
            text = (
                str(error) if isinstance(error, InputError) else "not of the form {inputs: {...}}"
            )
            return JSONResponse({"error": text}, status_code=400)
        except TilesmithError as error:  # an index out of range, memory that is not there
            return JSONResponse({"error": str(error)}, status_code=422)
        return JSONResponse({"outputs": outputs})

    def describe(request: Request) -> JSONResponse:
        def shown(infos: Any) -> list[dict[str, Any]]:
            shape = lambda i: None if i.shape is None else [str(e) for e in i.shape]  # noqa: E731
            return [{"name": i.name, "dtype": i.dtype, "shape": shape(i)} for i in infos]

        return JSONResponse(
            {"name": model.name, "inputs": shown(model.inputs), "outputs": shown(model.outputs)}
        )

    return Starlette(routes=[Route("/run", answer, methods=["POST"]), Route("/model", describe)])


def plain(array: Any) -> Any:
    """Lists of what JSON can write: null for a number that is infinite or none."""
    if array.dtype.kind in "biuSUO":
        return array.tolist()
    wide = array.astype(np.float64)
    return np.where(np.isfinite(wide), wide, None).tolist()


def served() -> Starlette:
    """The application of a worker process."""
    path = os.environ[PATH]
    return application(ts.load(path) if path.endswith(".tsm") else ts.compile(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="artifact (.tsm) or ONNX file")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=1, help="processes that share the weights")
    asked = parser.parse_args()
    try:
        import uvicorn
    except ImportError:
        sys.exit("this example serves by uvicorn: pip install uvicorn")
    os.environ[PATH] = asked.model
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    uvicorn.run("serve:served", factory=True, port=asked.port, workers=asked.workers)


if __name__ == "__main__":
    main()
