"""`nki.language`: functions that are others of it put together, and questions about tensors."""

# mypy: disable-error-code="no-any-return"

from typing import Any

from tilesmith.families.trainium.nki.notation import selections
from tilesmith.families.trainium.nki.notation.calls import NkiCall
from tilesmith.families.trainium.nki.notation.language import BUFFERS, LANGUAGE
from tilesmith.families.trainium.nki.notation.tensors import TensorView


@LANGUAGE.add("x prob", name="dropout")
def dropout(call: NkiCall) -> TensorView:
    call.given |= {"data": call.x, "prob": getattr(call.prob, "rate", call.prob)}
    return selections.dropout(call)


@LANGUAGE.add("seed")
def random_seed(call: NkiCall) -> None:
    """Random numbers are none of a trace: only a rate of 0 is known."""


@LANGUAGE.add("x")
def logical_not(call: NkiCall) -> TensorView:
    return call.trace.function("equal")(call.x, 0)


@LANGUAGE.add("x axis keepdims=False")
def var(call: NkiCall) -> TensorView:
    of = call.trace.function
    apart = of("subtract")(call.x, of("mean")(call.x, axis=call.axis, keepdims=True))
    return of("mean")(of("square")(apart), axis=call.axis, keepdims=call.keepdims)


@LANGUAGE.add("x w axis n epsilon=1e-6")
def rms_norm(call: NkiCall) -> TensorView:
    of = call.trace.function
    total = of("sum")(of("square")(call.x), axis=call.axis, keepdims=True)
    scale = of("rsqrt")(of("add")(of("multiply")(total, 1.0 / call.n), call.epsilon))
    return of("multiply")(of("multiply")(call.x, scale), call.w)


@LANGUAGE.add("x")
def tan(call: NkiCall) -> TensorView:
    of = call.trace.function
    return of("divide")(of("sin")(call.x), of("cos")(call.x))


@LANGUAGE.add("x")
def mish(call: NkiCall) -> TensorView:
    of = call.trace.function
    return of("multiply")(call.x, of("tanh")(of("softplus")(call.x)))


@LANGUAGE.add("x")
def gelu_apprx_sigmoid(call: NkiCall) -> TensorView:
    of = call.trace.function
    return of("multiply")(call.x, of("sigmoid")(of("multiply")(call.x, 1.702)))


@LANGUAGE.add("x")
def silu_dx(call: NkiCall) -> TensorView:
    of = call.trace.function
    s = of("sigmoid")(call.x)
    rest = of("add")(of("multiply")(call.x, of("subtract")(1.0, s)), 1.0)
    return of("multiply")(s, rest)


@LANGUAGE.add("x axis")
def all(call: NkiCall) -> TensorView:
    return call.trace.function("min")(call.trace.function("not_equal")(call.x, 0), axis=call.axis)


def _space(call: NkiCall) -> Any:
    buffer = getattr(call.x, "space", call.x)
    space = BUFFERS.get(str(buffer), str(buffer))
    name = call.function.rpartition("is_")[2]
    return space in ("sbuf", "psum") if name == "on_chip" else space == name


for _name in ("hbm", "sbuf", "psum", "on_chip"):
    LANGUAGE.add("x", name=f"is_{_name}")(_space)

FUNCTIONS = LANGUAGE
"""All of `nki.language`, with these."""
