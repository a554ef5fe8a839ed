"""`torch.compile(..., backend="tilesmith")`: antialiased images, and options beside eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
pytestmark = pytest.mark.extra

from tilesmith.torch_backend import reports  # noqa: E402

nn = torch.nn


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    "asked",
    [{"scale_factor": 1.7}, {"scale_factor": 0.45}, {"size": (9, 4), "align_corners": True}],
)
def test_antialiased_images_have_the_scale_that_is_given(mode: str, asked: dict[str, Any]) -> None:
    """Which PyTorch's exporter leaves out."""

    def resized(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x, mode=mode, antialias=True, **asked)

    x = torch.randn(1, 2, 6, 7)
    torch.testing.assert_close(torch.compile(resized, backend="tilesmith")(x), resized(x))
    assert not reports()[0].left


def test_one_order_of_sums_is_asked_for_by_an_option() -> None:
    module, x = nn.Linear(64, 8).eval(), torch.randn(16, 64)
    compiled = torch.compile(module, backend="tilesmith", options={"bits": "same"})
    torch.testing.assert_close(compiled(x), module(x))
    assert not reports()[0].left and reports()[0].compiled == 1
