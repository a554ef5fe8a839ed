"""The backend's name is known however a process begins: by the entry point, or by our import."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from tilesmith import beside_torch


class Registry(ModuleType):
    """PyTorch's registry of backends, as its first lookup by an entry point leaves it."""

    _COMPILER_FNS: dict[str, Any]
    _BACKENDS: dict[str, Any]

    def __init__(self, known: dict[str, Any]) -> None:
        super().__init__("registry")
        self._COMPILER_FNS, self._BACKENDS = {}, known

    def register_backend(self, compiler_fn: Any, name: str) -> None:
        assert name not in self._COMPILER_FNS, f"duplicate name: {name}"
        self._COMPILER_FNS[name] = compiler_fn


@pytest.mark.parametrize("known", [{}, {"tilesmith": object()}], ids=["unknown", "entry point"])
def test_an_entry_point_registers_what_it_imports(
    known: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our import, in the middle of PyTorch's lookup, leaves the name to that lookup."""
    registry = Registry(known)
    monkeypatch.setitem(sys.modules, "torch._dynamo.backends.registry", registry)
    beside_torch.tell_torch()
    assert ("tilesmith" in registry._COMPILER_FNS) == (not known)


@pytest.mark.extra
@pytest.mark.parametrize(
    "imports", ["torch", "tilesmith, torch", "torch, torch._dynamo, tilesmith"]
)
def test_the_first_compilation_of_a_process(imports: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    text = f"""
import {imports}
module = torch.nn.Linear(4, 4)
x = torch.ones(2, 4)
if "tilesmith" in torch._dynamo.list_backends():
    with torch.no_grad():
        compiled = torch.compile(module, backend="tilesmith")
        torch.testing.assert_close(compiled(x), module(x))
    import tilesmith.torch_backend
    print(tilesmith.torch_backend.reports()[0].whole)
else:
    print("not installed")
"""
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout in ("True\n", "not installed\n")
