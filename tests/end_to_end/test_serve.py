"""`examples/serve.py`: a model behind HTTP, asked by many at once."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilesmith
from tests.compiler.model_builder import model_of, random

SERVE = Path(__file__).resolve().parents[2] / "examples" / "serve.py"


async def _asked(application: Any, path: str, content: Any = None) -> tuple[int, Any]:
    """The answer of an ASGI application, and its status; posts what there is to post."""
    sent: list[dict[str, Any]] = []
    body = b"" if content is None else json.dumps(content).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    method = "GET" if content is None else "POST"
    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b"",
             "root_path": "", "http_version": "1.1", "scheme": "http"}  # fmt: skip
    await application(scope, receive, send)
    answer = b"".join(message.get("body", b"") for message in sent)
    return int(sent[0]["status"]), json.loads(answer)


def test_a_model_is_served_to_many_at_once() -> None:
    pytest.importorskip("starlette")
    weights = random(8, 8)
    model = tilesmith.compile(
        model_of("g (float[2, 8] x) => (float[2, 8] y) { y = MatMul(x, w) }", w=weights)
    )
    application: Any = runpy.run_path(str(SERVE))["application"](model)

    async def session() -> None:
        _, known = await _asked(application, "/model")
        assert known["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["2", "8"]}]
        given = [random(2, 8, seed=number) for number in range(32)]
        asked = [_asked(application, "/run", {"inputs": {"x": x.tolist()}}) for x in given]
        for x, (status, found) in zip(given, await asyncio.gather(*asked), strict=True):
            assert status == 200
            np.testing.assert_allclose(found["outputs"]["y"], x @ weights, rtol=1e-4, atol=1e-5)
        for wrong in ({"inputs": {"q": 1}}, {"inputs": {"x": [1.0]}}, {}, {"inputs": 3}):
            status, found = await _asked(application, "/run", wrong)
            assert status == 400
            assert found["error"]
        status, found = await _asked(application, "/run", {"inputs": {"x": [[3.4e38] * 8] * 2}})
        assert status == 200 and None in found["outputs"]["y"][0], "JSON has no infinity"

    asyncio.run(session())


def test_without_starlette_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    with pytest.raises(SystemExit, match="pip install starlette uvicorn"):
        runpy.run_path(str(SERVE))
