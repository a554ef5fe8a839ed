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

from tilesmith import torch_backend  # noqa: E402
from tilesmith.capabilities.pytorch import torch_graphs  # noqa: E402
from tilesmith.torch_backend import reports  # noqa: E402

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


@torch.library.custom_op("tilesmith_tests::rolled", mutates_args=())
def rolled(x: torch.Tensor) -> torch.Tensor:
    """An operator that nobody can write."""
    return x.roll(1)


@rolled.register_fake
def _(x: Any) -> Any:
    return torch.empty_like(x)


class Rolling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        y = self.first(x).relu()
        return {"y": self.second(rolled(y)) + y, "rows": x.shape[0]}


def test_an_operator_that_cannot_be_written_is_left_to_pytorch_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = Rolling().eval()
    compiled = torch.compile(module, backend="tilesmith", fullgraph=True)
    for _ in range(2):
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled(x), module(x))
    report = reports()[-1]
    assert report.left == {"tilesmith_tests.rolled.default": 1}
    assert report.compiled == 2 and not report.whole and "rolled" in report.reason
    (said,) = warnings(caplog)
    assert "leaves to PyTorch: 1 tilesmith_tests.rolled.default; the rest is" in said


def test_what_the_exporter_would_write_as_an_overflow_is_left_to_pytorch() -> None:
    """erfcx(12) is 0.047, and exp(144) erfc(12) infinity times 0."""

    def several(x: Any) -> Any:
        return torch.special.erfcx(x) * 2, torch.special.log_ndtr(-x) + 1

    x = torch.tensor([0.5, 3.0, 12.0, 300.0])
    with torch.no_grad():
        results = torch.compile(several, backend="tilesmith")(x)
    for result, due in zip(results, several(x), strict=True):
        torch.testing.assert_close(result, due)


def test_reports_are_of_graphs_since_the_last_reset() -> None:
    compiled = torch.compile(nn.Linear(4, 4).eval(), backend="tilesmith")
    compiled(torch.randn(3, 4))
    (graph,) = [held() for held in torch_backend._graphs]  # kept alive, as caches and cycles do
    assert graph is not None and reports() == [graph.report]
    torch._dynamo.reset()
    assert reports() == []
    compiled(torch.randn(3, 4))
    assert len(reports()) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_results_of_narrow_numbers_keep_their_type(dtype: Any) -> None:
    """Sums are computed in float32; bfloat16 needs operators of ONNX's newest versions."""

    def function(x: Any, picture: Any) -> Any:
        columns = [column.sum() for column in x.split(2, -1)]
        product = torch.einsum("ij,kj->ik", x, x)
        return columns, x.mean(0), x.topk(2), x.median(), product, norm(picture)

    norm = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)).eval().to(dtype)
    x = (torch.randperm(12).reshape(3, 4) / 4 - 1).to(dtype)  # no two are equal: topk may choose
    picture = torch.randn(1, 2, 5, 5).to(dtype)
    results = torch.compile(function, backend="tilesmith", fullgraph=True)(x, picture)
    assert reports()[-1].whole
    torch.testing.assert_close(results, function(x, picture))


def test_results_lie_in_memory_as_pytorchs() -> None:
    def function(x: Any, picture: Any) -> Any:
        return x.t() * 2, picture.relu(), x.sum(0)

    picture = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    results = torch.compile(function, backend="tilesmith", fullgraph=True)(
        torch.randn(3, 4), picture
    )
    assert [y.stride() for y in results] == [(1, 4), picture.stride(), (1,)]
    torch.testing.assert_close(results[1], picture.relu())
    assert results[1].permute(0, 2, 3, 1).view(-1).shape == (96,)


def test_checkpoints_are_compiled_in_inference() -> None:
    layer, x = nn.Linear(4, 4), torch.randn(3, 4)

    def function(x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False) + 1

    result = torch.compile(function, backend="tilesmith", fullgraph=True)(x)
    assert reports()[-1].whole
    torch.testing.assert_close(result, layer(x) + 1)


def test_random_numbers_are_pytorchs() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)).train()
    compiled = torch.compile(module, backend="tilesmith")
    x = torch.randn(3, 4)
    drawn = []
    for function in (compiled, module):
        torch.manual_seed(1)
        drawn.append(function(x))
    torch.testing.assert_close(*drawn)
    report = reports()[-1]
    assert report.left == {"aten.native_dropout.default": 1}


def test_gradients_are_pytorchs_and_computed_when_asked_for() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).eval()
    compiled = torch.compile(module, backend="tilesmith")
    x = torch.randn(3, 4, requires_grad=True)
    with torch.enable_grad():
        result = compiled(x)
        report = reports()[-1]
        assert report.whole and result.requires_grad
        wanted = [x, *module.parameters()]
        gradients = torch.autograd.grad(result.square().sum(), wanted, create_graph=True)
        expected = torch.autograd.grad(module(x).square().sum(), wanted, create_graph=True)
        torch.testing.assert_close(gradients, expected)
        twice = [torch.autograd.grad(g[0].sum(), x)[0] for g in (gradients, expected)]
        torch.testing.assert_close(*twice)
        torch.testing.assert_close(compiled(x), module(x))
    report = reports()[-1]
    assert not report.whole and report.reason == "its gradients are asked for, as in training"


class Squashed(torch.autograd.Function):
    """A function with a backward of its own, as transformers' BLOOM has."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x)
        return x.sin() * y, x + 1

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        return given[0] + given[1], None


class Nested(torch.autograd.Function):
    """A function that calls one in its forward, and has a tensor of its own."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return sum(Squashed.apply(x, torch.tensor([0.5, 2.0, 1.0, 3.0])))

    @staticmethod
    def backward(ctx: Any, given: Any) -> Any:
        return given * 2


class Broken(nn.Linear):
    """A layer whose graph ends inside it, so that all of its kind share what Dynamo makes."""

    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        torch._dynamo.graph_break()
        return y


def test_layers_that_share_a_graph_are_compiled_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(*(Broken(4, 4) for _ in range(3))).eval()
    built = []
    build = torch_graphs.build_fixed
    monkeypatch.setattr(torch_graphs, "build_fixed", lambda *a: built.append(a) or build(*a))
    compiled = torch.compile(module, backend="tilesmith")
    x = torch.randn(2, 4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), module(x))
        assert len(built) == 3


def test_what_is_there_for_gradients_alone_does_not_hinder() -> None:
    def function(x: Any) -> Any:
        with torch.no_grad():
            angles = x.cos()
        first, second = Squashed.apply(x * 2, angles)
        return first + second

    x = torch.randn(3, 4, requires_grad=True)
    with torch.enable_grad():
        result = torch.compile(function, backend="tilesmith", fullgraph=True)(x)
        assert reports()[-1].whole
        torch.testing.assert_close(result, function(x))
        given = (torch.autograd.grad(y.sum(), x)[0] for y in (result, function(x)))
        torch.testing.assert_close(*given)


def test_functions_with_a_backward_stand_between_layers() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)

    def function(x: Any) -> Any:
        return second(Nested.apply(first(x)))

    x = torch.randn(3, 4, requires_grad=True)
    with torch.enable_grad():
        result = torch.compile(function, backend="tilesmith", fullgraph=True)(x)
        assert reports()[-1].whole
        torch.testing.assert_close(result, function(x))
        given = (torch.autograd.grad(y.sum(), [x, first.weight]) for y in (result, function(x)))
        torch.testing.assert_close(*given)


def test_training_runs_in_pytorch_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    compiled = torch.compile(module, backend="tilesmith")
    with torch.enable_grad():
        compiled(torch.randn(3, 4)).sum().backward()
    assert module[0].weight.grad is not None
    assert any("it needs gradients and writes its arguments" in text for text in warnings(caplog))


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_fast_path_of_encoder_layers_is_compiled(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first)
    module = layer.eval()
    compiled = torch.compile(module, backend="tilesmith")
    x, padding = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    result = compiled(x, src_key_padding_mask=padding)
    torch.testing.assert_close(result, module(x, src_key_padding_mask=padding))
    assert reports()[-1].whole


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_numbers_stay_short(dtype: torch.dtype) -> None:
    module = nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.Softmax(-1)).eval().to(dtype)
    x = torch.randn(2, 16, dtype=dtype)
    result = torch.compile(module, backend="tilesmith")(x)
    assert result.dtype is dtype and reports()[-1].whole
    exact = module.double()(x.double())
    limit = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(result.double(), exact, rtol=limit, atol=limit)


def test_batch_norms_in_inference_give_no_numbers_of_the_batch() -> None:
    def normed(x: Any, mean: Any, variance: Any) -> Any:
        return torch.native_batch_norm(x, None, None, mean, variance, False, 0.1, 1e-5)

    given = torch.randn(3, 2, 4), torch.randn(2), torch.rand(2) + 1
    compiled = torch.compile(normed, backend="tilesmith", fullgraph=True)
    torch.testing.assert_close(compiled(*given), normed(*given))
    assert reports()[-1].whole


def test_squeezing_axes_that_are_not_1_is_compiled() -> None:
    def squeezed(x: Any) -> Any:
        return torch.squeeze(x, (0, 2)) + 1, torch.squeeze(x, (1, 2)) + 1

    x = torch.randn(3, 1, 4)
    compiled = torch.compile(squeezed, backend="tilesmith", fullgraph=True)
    torch.testing.assert_close(compiled(x), squeezed(x))
    assert reports()[-1].whole


@pytest.mark.parametrize("name", ["fmax", "fmin", "hypot"])
def test_pairs_with_edges_among_them(name: str) -> None:
    inf, nan = float("inf"), float("nan")
    edges = torch.tensor([0.0, -1.5, 3e38, 1e-30, inf, -inf, nan])
    a, b = edges[:, None].clone(), edges[None].clone()
    function = getattr(torch, name)
    compiled = torch.compile(function, backend="tilesmith")
    torch.testing.assert_close(compiled(a, b), function(a, b), equal_nan=True)
    assert reports()[-1].whole


def test_graphs_break_where_they_have_to_and_options_are_checked() -> None:
    x = torch.randn(4, 3)

    def branch(x: Any) -> Any:
        return (x if x.sum() > 0 else -x) * 3

    result = torch.compile(branch, backend="tilesmith", options={"threads": 1})(x)
    torch.testing.assert_close(result, branch(x))
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


def test_results_that_share_memory_go_on_sharing_it() -> None:
    def change(x: Any) -> Any:
        whole = x * 2
        part = whole[1:].view(-1)
        torch._dynamo.graph_break()
        part.add_(1)
        return whole

    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(change, backend="tilesmith")(x), change(x))


def test_arguments_that_share_memory_are_written_as_pytorch_writes_them() -> None:
    def change(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2

    compiled = torch.compile(change, backend="tilesmith")
    for function in (compiled, change):
        buffer = torch.zeros(6)
        torch.testing.assert_close(function(buffer[:4], buffer[2:]), torch.tensor([2.0, 2, 0, 0]))


def test_views_of_sizes_that_vary() -> None:
    def views(x: Any) -> Any:
        return x.flatten(), x.sum()

    compiled = torch.compile(views, backend="tilesmith", dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        flat, total = compiled(x)
        torch.testing.assert_close(total, x.sum())
        assert flat.data_ptr() == x.data_ptr() and flat.shape == (rows * 4,)


def test_pytorch_may_be_imported_later() -> None:
    program = (
        "import sys, tilesmith, torch\n"
        "assert not {'torch._dynamo', 'tilesmith.compiler'} & sys.modules.keys()\n"
        "from torch._dynamo.backends.registry import _COMPILER_FNS\n"
        "assert 'tilesmith' in _COMPILER_FNS\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
