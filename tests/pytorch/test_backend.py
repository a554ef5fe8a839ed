"""`torch.compile(..., backend="tilesmith")`: what PyTorch itself computes is the oracle."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
pytestmark = pytest.mark.extra

import tilesmith  # noqa: E402, F401 (makes itself known to PyTorch)

nn = torch.nn


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "tilesmith.torch"]


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Any, factor: float = 2) -> Any:
        self.seen.add_(x.sum(0))
        return {"y": self.linear(x) * factor, "seen": self.seen, "rows": x.shape[0]}


def test_shapes_numbers_and_weights_may_change(caplog: pytest.LogCaptureFixture) -> None:
    module = Counted().eval()
    eager = copy.deepcopy(module)
    compiled = torch.compile(module, backend="tilesmith", fullgraph=True)

    def check(rows: int, factor: float) -> None:
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x, factor), eager(x, factor))
        torch.testing.assert_close(module.seen, eager.seen)

    for rows, factor in ((3, 2), (5, 2.5)):
        check(rows, factor)
    eager.load_state_dict({name: value + 1 for name, value in eager.state_dict().items()})
    module.load_state_dict(eager.state_dict())
    check(3, 2)
    assert not warnings(caplog)


def test_what_is_not_compiled_runs_in_pytorch_and_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = torch.randn(4, 3)
    far = torch.compile(lambda x: torch.cdist(x, x) + 1, backend="tilesmith", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(far(x), torch.cdist(x, x) + 1)
    (said,) = warnings(caplog)
    assert "begins with 'cdist' runs in PyTorch: 'graph' cannot be written in ONNX" in said
    caplog.clear()
    module = torch.compile(nn.Linear(3, 2), backend="tilesmith")
    with torch.enable_grad():
        module(x).sum().backward()
    assert module.weight.grad is not None
    assert any("it needs gradients" in text for text in warnings(caplog))


def test_graphs_break_where_they_have_to_and_options_are_checked() -> None:
    x = torch.randn(4, 3)

    def branch(x: Any) -> Any:
        return (x if x.sum() > 0 else -x) * 3

    found = torch.compile(branch, backend="tilesmith", options={"threads": 1})(x)
    torch.testing.assert_close(found, branch(x))
    wrong = torch.compile(branch, backend="tilesmith", options={"thread": 1})
    with pytest.raises(Exception, match=r"has no option 'thread'; it has target, database"):
        wrong(x)


def test_views_of_arguments_stay_views() -> None:
    def views(x: Any) -> Any:
        return x[1:].view(-1), x + 1

    compiled = torch.compile(views, backend="tilesmith", fullgraph=True)
    whole = torch.arange(20.0).reshape(5, 4)
    for x in (whole[:3], whole[2:]):
        part, more = compiled(x)
        torch.testing.assert_close(more, x + 1)
        part.fill_(-1)
        assert (x[1:] == -1).all() and (x[0] >= 0).all()
        x.fill_(1)


def test_pytorch_may_be_imported_later() -> None:
    program = (
        "import sys, tilesmith, torch\n"
        "assert not {'torch._dynamo', 'tilesmith.compiler'} & sys.modules.keys()\n"
        "from torch._dynamo.backends.registry import _COMPILER_FNS\n"
        "assert 'tilesmith' in _COMPILER_FNS\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
