"""Complex numbers through `torch.compile`: whole, and as PyTorch computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
pytestmark = pytest.mark.extra

from tilesmith.torch_backend import reports  # noqa: E402


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def check(function: Callable[..., Any], *args: Any) -> None:
    compiled = torch.compile(function, backend="tilesmith")
    torch.testing.assert_close(compiled(*args), function(*args), rtol=1e-4, atol=1e-5)
    assert all(graph.whole for graph in reports()), reports()


def numbers(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def moved(x: Any, places: Any) -> Any:
    z = torch.complex(x, x.flip(0))
    return (
        z.unsqueeze(-1).expand(-1, -1, 3), z[places], z.select(1, -1), z.repeat(2, 1),
        torch.where(x > 0, z, z.conj()), z.cumsum(-1), z.index_select(1, places),
        z[None].squeeze(), torch.nn.functional.pad(z, [1, 2]), torch.full_like(z, 2 + 1j),
    )  # fmt: skip


def computed(x: Any) -> Any:
    z = torch.complex(x, x.flip(0))
    z = z + torch.polar(torch.ones_like(x), x)
    return z.exp(), z**2, z**1.5, z.sqrt(), z.log(), torch.bmm(z[None], z.mT[None]), z @ x.to(z)


def written(x: Any, weight: Any) -> Any:
    """A layer of a Fourier neural operator: a corner of the spectrum is multiplied."""
    spectrum = torch.fft.rfft2(x)
    result = torch.zeros(2, 3, 8, 5, dtype=torch.complex64)
    result[:, :, :3, :3] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :3, :3], weight)
    return torch.fft.irfft2(result, s=(8, 8))


def test_elements_are_moved() -> None:
    check(moved, numbers(4, 4), torch.tensor([2, 0]))


def test_functions_and_products() -> None:
    check(computed, numbers(4, 4))


def test_a_corner_of_a_spectrum() -> None:
    check(written, numbers(2, 2, 8, 8), torch.complex(numbers(2, 3, 3, 3), numbers(2, 3, 3, 3)))


def test_an_argument_that_is_a_view_of_other_numbers() -> None:
    """Rotations come from another graph as complex views of real numbers."""
    pairs = numbers(4, 3, 2)
    check(lambda z: z * 2, torch.view_as_complex(pairs))
