"""Modules of PyTorch, compiled: what PyTorch itself computes is the oracle."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
pytestmark = pytest.mark.extra

import tilesmith as ts  # noqa: E402
from tilesmith.compiler.runtime.torch_tensors import array_of, tensor_of  # noqa: E402

nn, dims = torch.nn, torch.export.Dim


class Of(nn.Module):
    """A module of one function and the modules it calls."""

    def __init__(self, function: Any, **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def close(result: Any, expected: Any, **tolerance: float) -> None:
    """Same nesting, same shapes and types, values alike."""
    torch.testing.assert_close(result, expected, **tolerance)


class Nested(nn.Module):
    """Nested arguments and results, constants among them, and everything written that can be."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("cache", torch.zeros(2, 8, 4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Any, at: Any, *, scale: float, flags: dict[str, Any]) -> Any:
        self.cache[:, at] = self.second(self.first(x)) * scale
        self.steps += 1
        x.add_(flags["by"])
        total = self.cache.sum(1) if flags["sum"] else self.cache
        return {"total": total, "nothing": None, "both": [self.steps + 1, (x, 3, x.shape[1])]}


def test_nested_values_writes_and_shapes_that_vary() -> None:
    module = Nested().eval()
    kept = copy.deepcopy(module)
    flags = {"by": torch.tensor(2.0), "sum": True}
    varies = {
        "x": {1: dims.AUTO},
        "at": {0: dims.AUTO},
        "scale": None,
        "flags": {"by": None, "sum": None},
    }
    compiled = ts.from_torch(
        module,
        (torch.randn(2, 3, 4), torch.arange(3)),
        {"flags": flags, "scale": 0.5},
        dynamic_shapes=varies,
    )
    for size in (3, 5):
        x = torch.randn(2, size, 4)
        mine, theirs = x.clone(), x.clone()
        with torch.no_grad():
            result = compiled(mine, torch.arange(size), scale=0.5, flags=flags)
            close(result, kept(theirs, torch.arange(size), scale=0.5, flags=flags))
        close(mine, theirs)
        close(module.cache, kept.cache)
        close(module.steps, kept.steps)
    with pytest.raises(ts.ModelError, match=r"for the argument True and is called with False"):
        compiled(x, torch.arange(5), scale=0.5, flags={**flags, "sum": False})
    with pytest.raises(ts.ModelError, match=r"traced for other arguments than it is called with"):
        compiled(x, torch.arange(5))


def _attention(self: Any, x: Any, mask: Any) -> Any:
    return self.layers(x, src_key_padding_mask=mask)


def test_layers_of_a_text_model() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    embed = nn.Embedding(20, 16)
    module = Of(lambda self, ids, mask: self.layers(self.embed(ids), src_key_padding_mask=mask),
                layers=layers, embed=embed).eval()  # fmt: skip
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])
    with torch.no_grad():
        compiled = ts.from_torch(module, (ids, ids == 0))
        close(compiled(ids, ids == 0), module(ids, ids == 0), rtol=1e-4, atol=1e-5)
    assert compiled.executable.report.host == 0


def test_layers_of_a_vision_model() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, groups=2), nn.GroupNorm(4, 16), nn.Upsample(scale_factor=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    ).eval()  # fmt: skip
    image = torch.randn(2, 3, 12, 12).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        compiled = ts.from_torch(module, (image,))
        close(compiled(image), module(image), rtol=1e-4, atol=1e-5)
    assert compiled.executable.report.host == 0


def test_sizes_with_an_end_are_compiled_once() -> None:
    module = nn.ReLU()
    varies = ({0: dims("rows", min=1, max=16)},)
    compiled = ts.from_torch(module, (torch.randn(3, 8),), dynamic_shapes=varies)
    for rows in (1, 5, 16):
        x = torch.randn(rows, 8)
        close(compiled(x), module(x))
    with pytest.raises(ts.ModelError, match="is 17; the model was compiled for 1 to 16"):
        compiled(torch.randn(17, 8))


def test_a_module_is_a_model_for_every_job(tmp_path: Any) -> None:
    module = nn.Linear(8, 4)
    model = ts.torch_model(module, (torch.ones(2, 8),))
    assert ts.simulate(model).latency_us > 0
    asked = {"measure": "simulator", "trials": 12}
    database = tmp_path / "tuning.db"
    assert ts.tune(model, "cpu", database, **asked).trials >= 4
    executable = ts.compile(model, "cpu", database, require_tuned=True)
    assert executable.report.tuned == 1
    x = np.ones((2, 8), np.float32)
    (result,) = executable.run({executable.inputs[0].name: x}).values()
    close(tensor_of(result), module(torch.from_numpy(x)).detach())


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "int8", "bool"])
def test_tensors_cross_without_copies(name: str) -> None:
    tensor = torch.tensor([[0, 1], [1, 0]]).to(getattr(torch, name))
    array = array_of(tensor.T)
    back = tensor_of(array)
    assert back.dtype == tensor.dtype and back.data_ptr() == tensor.data_ptr()
    assert back.stride() == tensor.T.stride()


def test_weights_are_shared() -> None:
    module = nn.Embedding(50, 16)
    model = ts.torch_model(module, (torch.tensor([1]),))
    (weights,) = model.weights.values()
    assert weights.ctypes.data == module.weight.data_ptr()


def test_what_cannot_be_compiled_is_said_in_a_sentence() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(ts.ModelError, match=r"'Sequential' drops out .*call its eval\(\)"):
        ts.torch_model(nn.Sequential(nn.Dropout(0.5)).train(), (x,))
    with pytest.raises(ts.ModelError, match=r"torch.export cannot trace 'Of'"):
        ts.torch_model(Of(lambda self, x: x if x.sum() > 0 else -x), (x,))
    with pytest.raises(ts.ModelError, match=r"'Of' cannot be written in ONNX .*cummax"):
        ts.torch_model(Of(lambda self, x: x.cummax(0)), (x,))
    with pytest.raises(ts.InputError, match=r"a torch.nn.Module is expected; got function"):
        ts.torch_model(lambda x: x, (x,))
    with pytest.raises(ts.ModelError, match=r"on meta; dense tensors on the CPU"):
        array_of(torch.empty(2, device="meta"))


@pytest.mark.parametrize("kind", ["truth", "infinite", "finite", "shared heads", "half"])
def test_attention_with_a_mask_is_pytorchs(kind: str) -> None:
    """A query that sees no key has a result of 0, with masks of infinities; what is no number in
    keys stays."""
    rng = np.random.default_rng(0)
    heads = 4 if kind == "shared heads" else 2
    q, k, v = (
        torch.tensor(rng.standard_normal((1, n, 4, 8)), dtype=torch.float32) for n in (heads, 2, 2)
    )
    k[0, 1, 2, 3] = torch.nan
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    mask[..., 3, :] = False
    if kind in ("infinite", "finite"):
        low = -torch.inf if kind == "infinite" else torch.finfo(torch.float32).min
        mask = torch.zeros(mask.shape).masked_fill(~mask, low)
    args = (q, k, v, mask)
    if kind == "half":
        args = (q.half(), k.half(), v.half(), mask)
    attention = nn.functional.scaled_dot_product_attention
    module = Of(lambda _, *a: attention(*a[:3], attn_mask=a[3], enable_gqa=heads == 4))
    tolerance = 2e-3 if kind == "half" else 1e-5
    with torch.no_grad():
        result, wanted = ts.from_torch(module, args)(*args), module(*args)
    close(result, wanted, equal_nan=True, rtol=tolerance, atol=tolerance)


MEANS = [("mean", True), ("mean", False), ("amax", False), ("sum", True)]


def test_scattered_reductions_are_what_they_say() -> None:
    index = torch.tensor([[0, 1], [0, 1], [2, 3], [2, 0]])

    def scatter(self: Any, x: Any, source: Any, whole: Any) -> Any:
        means = [
            x.scatter_reduce(0, index, source, how, include_self=own) for how, own in MEANS
        ]  # the source is larger than the index
        return [*means, whole.scatter_reduce(0, index, source.long(), "mean")]

    module = Of(scatter)
    arguments = torch.randn(6, 2), torch.randn(6, 3) * 9, torch.randint(-9, 9, (6, 2))
    compiled = ts.from_torch(module, arguments)
    close(compiled(*arguments), module(*arguments))
    endless = arguments[0], torch.full((6, 3), -torch.inf), arguments[2]
    close(compiled(*endless)[2], module(*endless)[2])


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_triangular_systems_are_solved(upper: bool, left: bool) -> None:
    a, b = torch.randn(2, 5, 5) / 5 + torch.eye(5), torch.randn(2, 5, 5)

    def solve(self: Any, a: Any, b: Any) -> Any:
        return [
            torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit)
            for unit in (False, True)
        ]

    compiled = ts.from_torch(Of(solve), (a, b))
    close(compiled(a, b), solve(None, a, b), rtol=1e-4, atol=1e-5)
    assert compiled.executable.report.host == 0


def test_operators_that_the_exporter_lacks_or_writes_wrongly() -> None:
    def several(self: Any, x: Any, image: Any) -> Any:
        normed = nn.functional.batch_norm(image, None, None, training=True)
        return [
            torch.cdist(x, x + 1), torch.cdist(x, x + 1, p=1.0),
            x.sum() + torch.arange(0.1, -7.9, -4.0), normed, torch.complex(x, x + 1),
            torch.ops.aten._is_all_true(x > -9),
            nn.functional.avg_pool2d(image, (3, 2), 2, 1, ceil_mode=True, divisor_override=5),
        ]  # fmt: skip

    given = torch.randn(2, 5, 3), torch.randn(2, 3, 8, 9)
    close(ts.from_torch(Of(several), given)(*given), several(None, *given), rtol=1e-4, atol=1e-5)


def test_complex_numbers_go_in_and_come_out() -> None:
    z = torch.randn(3, dtype=torch.complex64)
    module = Of(lambda self, z: (z * z, z.conj() * 2))
    compiled = ts.from_torch(module, (z,))
    for given in (z, z.conj()):
        close(compiled(given), module(given))


def test_a_range_of_one_number_is_a_vector() -> None:
    class Ranges(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linspace(x, 4, 1), torch.linspace(2.5, x, 1), torch.logspace(x, 4, 1, 1.1)

    x = torch.tensor(2.0)
    close(ts.from_torch(Ranges(), (x,))(x), Ranges()(x))


def test_the_inverse_error_function_to_its_ends() -> None:
    """Against float64; the exporter has no function for it."""
    near = torch.logspace(-7, -1, 200)
    y = torch.cat([torch.linspace(-1.1, 1.1, 401), 1 - near, near - 1, near, torch.zeros(1)])
    compiled = ts.from_torch(Of(lambda self, y: torch.erfinv(y) * 1.0), (y,))
    close(compiled(y).double(), torch.erfinv(y.double()), rtol=4e-7, atol=0.0, equal_nan=True)
    assert compiled.executable.report.host == 0
