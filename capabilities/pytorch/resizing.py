"""Images resized with antialiasing at a scale that is given, by products with matrices of weights.

The exporter takes the scale from sizes alone, as ONNX's Resize does for `sizes`, and PyTorch's
`align_corners` for ONNX's, which it is not where images are antialiased. Where neither is asked
for, the exporter's form stays. Source of weights: PyTorch's UpSampleKernel.cpp,
`_compute_indices_min_size_weights_aa` and `area_pixel_compute_scale`; Keys' cubic has a = -0.5.
Invariant: sizes are known.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

_A = -0.5


def _linear(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: Tensor) -> Tensor:
    x = x.abs()
    near = ((_A + 2) * x - (_A + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * _A
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def weights(
    before: int, after: int, scale: float, reach: float, curve: Callable[[Tensor], Tensor]
) -> Tensor:
    """What each of `after` pixels takes of each of `before`, (after, before); rows add up to 1.

    Args:
        scale: how many pixels before one after is wide.
        reach: how far `curve` reaches from its middle.
    """
    wide = max(scale, 1.0)
    middles = (scale * (torch.arange(after, dtype=torch.float64) + 0.5)).unsqueeze(1)
    first = (middles - reach * wide + 0.5).trunc()
    last = (middles + reach * wide + 0.5).trunc()
    places = torch.arange(before, dtype=torch.float64).unsqueeze(0)
    inside = (places >= first) & (places < last)
    taken = torch.where(inside, curve((places - middles + 0.5) / wide), 0)
    return taken / taken.sum(1, keepdim=True)


def _resized(reach: float, curve: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def rule(
        x: Tensor,
        size: Any,
        align_corners: bool,
        high: float | None = None,
        wide: float | None = None,
    ) -> Any:
        known = all(isinstance(n, int) for n in (*size, *x.shape[2:]))
        if not known or not (align_corners or high or wide):
            return NotImplemented
        sides = []
        for before, after, stated in zip(x.shape[2:], size, (high, wide), strict=True):
            scale = 1 / stated if stated else before / after
            if align_corners:
                scale = (before - 1) / (after - 1) if after > 1 else 0.0
            sides.append(weights(before, after, scale, reach, curve).to(x.dtype))
        return torch.matmul(torch.matmul(sides[0], x), sides[1].transpose(0, 1))

    return rule


RULES: dict[Any, Callable[..., Any]] = {
    aten._upsample_bilinear2d_aa.default: _resized(1.0, _linear),
    aten._upsample_bicubic2d_aa.default: _resized(2.0, _cubic),
}
"""Rules by operator; see `decompositions`."""
