"""Convolutions and pools of com.microsoft.

    FusedConv(x, w, b?, z?)        Conv, plus z, then `activation` with activation_params
    NhwcConv, NhwcFusedConv        the same with channels last: x [n, h, w, c], w [m, h, w, c]
    NhwcMaxPool(x)                 MaxPool with channels last

Attributes are those of Conv and MaxPool. Source: ONNX Runtime, docs/ContribOperators.md.
"""

from typing import Any

from tilesmith.compiler.contrib.products import activated
from tilesmith.compiler.rewriting.expansion import Expansion, operator

CONVOLUTION: dict[str, Any] = {
    "auto_pad": "NOTSET", "dilations": (), "group": 1, "kernel_shape": (), "pads": (),
    "strides": (),
}  # fmt: skip
_FUSED: dict[str, Any] = {"activation": "", "activation_params": ()}


def stated(e: Expansion, *names: str) -> dict[str, Any]:
    """Those of a node's attributes that the model gives."""
    return {name: e.attribute(name) for name in names if e.node.attribute(name) is not None}


def channels_first(e: Expansion, name: str) -> str:
    rank = e.rank(name)
    return e.transpose(name, 0, rank - 1, *range(1, rank - 1))


def channels_last(e: Expansion, name: str) -> str:
    rank = e.rank(name)
    return e.transpose(name, 0, *range(2, rank), 1)


@operator("com.microsoft.FusedConv", 2, 4, **CONVOLUTION, **_FUSED)
def fused_conv(e: Expansion) -> str:
    y = e.apply("Conv", *e.node.inputs[:3], **stated(e, *CONVOLUTION))
    return _activated(e, e.add(y, e.input(3)))


@operator("com.microsoft.NhwcFusedConv", 2, 4, **CONVOLUTION, **_FUSED)
def nhwc_fused_conv(e: Expansion) -> str:
    return _activated(e, e.add(_channels_last_conv(e), e.input(3)))


@operator("com.microsoft.NhwcConv", 2, 3, **CONVOLUTION)
def nhwc_conv(e: Expansion) -> str:
    return _channels_last_conv(e)


def _channels_last_conv(e: Expansion) -> str:
    x, weight = (channels_first(e, e.input(i)) for i in (0, 1))
    return channels_last(e, e.apply("Conv", x, weight, e.input(2), **stated(e, *CONVOLUTION)))


def _activated(e: Expansion, name: str) -> str:
    return activated(e, name, e.attribute("activation"), tuple(e.attribute("activation_params")))


_POOL: dict[str, Any] = {
    "auto_pad": "NOTSET", "ceil_mode": 0, "dilations": (), "kernel_shape": tuple, "pads": (),
    "strides": (),
}  # fmt: skip


@operator("com.microsoft.NhwcMaxPool", 1, 1, **_POOL)
def nhwc_max_pool(e: Expansion) -> str:
    return channels_last(e, e.newest("MaxPool", channels_first(e, e.input(0)), **stated(e, *_POOL)))
