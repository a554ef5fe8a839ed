"""Executables as one meets them: called, shown, given arrays of other frameworks."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from tests.compiler.model_builder import model_of
from tests.compiler.test_updates import compiled as compiled_cache
from tests.compiler.test_updates import model as cache_model
from tests.compiler.test_updates import start as new_cache
from tests.compiler.test_updates import step as cache_step
from tests.compiler.varying_models import compiled as compiled_varying
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.host.memory import aligned_copy
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime import callers_memory
from tilesmith.compiler.runtime.callers_memory import CallersMemory
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.support.errors import ModelError


def _built(text: str) -> Executable:
    return build(import_model(model_of(text)), host_target())


_TWO = "g (float[64, 64] x, float[64, 64] m) => (float[64, 64] y, float[64, 64] z) "
TWO = _TWO + "{ y = Sub(x, m) z = Relu(y) }"
ONE = "g (float[64, 64] x) => (float[64, 64] y) { y = Relu(x) }"


def _random(seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((64, 64)).astype(np.float32)


def test_models_are_called_like_functions() -> None:
    one, two = _built(ONE), _built(TWO)
    x, m = _random(), _random(1)
    wanted = two.run({"x": x, "m": m})
    for found in (two(x, m), two(x, m=m), two(m=m, x=x), two(m=m, x=x)):
        assert isinstance(found, tuple)
        for array, name in zip(found, ("y", "z"), strict=True):
            np.testing.assert_array_equal(array, wanted[name])
    np.testing.assert_array_equal(one(x), np.maximum(x, 0))
    varying = compiled_varying(model_of(
        "g (float[n, 64] x) => (float[n, 64] y) { y = Relu(x) }"), {"n": (2, 99)})  # fmt: skip
    np.testing.assert_array_equal(varying(x[:9]), np.maximum(x[:9], 0))


@pytest.mark.parametrize(
    ("arguments", "named", "words"),
    [
        ((1, 2, 3), {}, "takes 2 inputs (x, m), and 3 are given"),
        ((1,), {"x": 1}, "input 'x' of 'g' is given twice"),
        ((), {"q": 1}, "has no input 'q'"),
        ((1,), {}, "input 'm' of 'g' is missing"),
    ],
)
def test_wrong_calls_are_refused(arguments: Any, named: Any, words: str) -> None:
    with pytest.raises(ModelError) as caught:
        _built(TWO)(*arguments, **named)
    assert words in str(caught.value)


class _Text(HTMLParser):
    """The text of a page, and the names of its elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.elements: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.add(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_models_show_what_they_are() -> None:
    model = model_of(ONE)
    model.graph.input[0].name = model.graph.node[0].input[0] = "<script>x"
    found = build(import_model(model), host_target())
    text, page = repr(found), _Text(found._repr_html_())
    assert text.startswith("<Executable 'g'")
    for words in ("<script>x", "float32 64x64", "1 unmeasured", "1 thread", "MB of weights"):
        assert words in text
        assert words in " ".join(page.words)
    assert page.elements == {"table", "caption", "tr", "th", "td", "b"}
    varying = compiled_varying(model_of(
        "g (float[n, 5] x) => (float[n, 5] y) { y = Relu(x) }"), {"n": (2, 99)})  # fmt: skip
    assert "x  float32 nx5" in repr(varying)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Addresses of inputs that kernels read where the caller has them."""
    found: list[int] = []
    take = CallersMemory.take

    def spied(self: CallersMemory, ref: Any, array: Any) -> bool:
        if took := take(self, ref, array):
            found.append(array.ctypes.data)
        return took

    monkeypatch.setattr(callers_memory, "_LEAST", 1 << 12)
    monkeypatch.setattr(CallersMemory, "take", spied)
    return found


@pytest.mark.extra
def test_tensors_of_torch_go_in_and_out_where_they_are(taken: list[int]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.randn(64, 64, requires_grad=True)
    y = _built(ONE)(x)
    assert taken == [x.data_ptr()]
    tensor = torch.from_dlpack(y)
    assert tensor.data_ptr() == y.ctypes.data
    assert torch.equal(tensor, torch.relu(x))
    assert torch.equal(torch.from_dlpack(_built(ONE)(x.detach().T)), torch.relu(x.T))


@pytest.mark.extra
def test_arrays_of_jax_go_in_and_out_where_they_are(taken: list[int]) -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    x = jax.numpy.asarray(_random())
    y = _built(ONE)(x)
    assert taken == [x.unsafe_buffer_pointer()]
    array = jax.dlpack.from_dlpack(y)
    assert array.unsafe_buffer_pointer() == y.ctypes.data
    assert jax.numpy.array_equal(array, jax.nn.relu(x))


def test_arrays_of_numpy_on_a_cache_line_go_in_where_they_are(taken: list[int]) -> None:
    x = aligned_copy(_random())
    bound = _built(ONE)
    np.testing.assert_array_equal(bound(x), np.maximum(x, 0))
    assert taken == [x.ctypes.data]
    binding = bound.bind({"x": x})
    binding.run()
    np.testing.assert_array_equal(binding.outputs()["y"], np.maximum(x, 0))


@pytest.mark.extra
def test_a_cache_of_torch_is_written_where_it_is() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    executable = compiled_cache(cache_model())
    cache, wanted = new_cache(), new_cache()
    tensor = torch.from_dlpack(cache)
    found = executable.run({**cache_step(cache, 5), "c": tensor})
    assert found["y"] is tensor
    executable.run(cache_step(wanted, 5))
    np.testing.assert_array_equal(tensor.numpy(), wanted)


def test_what_is_no_array_on_the_cpu_is_refused() -> None:
    class Elsewhere:
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("it is on the moon")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 99, 0

    with pytest.raises(ModelError, match="input 'x' of 'g' cannot be read as an array"):
        _built(ONE)(Elsewhere())
