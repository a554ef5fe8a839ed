"""Functions of the error function's family, beside those that CHLO itself writes as others."""

from typing import Any

import numpy as np

from tilesmith.capabilities.stablehlo.arithmetic import RealValue, erf
from tilesmith.capabilities.stablehlo.translator import Translation, Values, expanded, rules


@rules.register("chlo.erfc")
def _complementary_error(translation: Translation, operation: Any, values: Values) -> Values:
    """1 - erf(x).

    The argument of a GELU, -x / sqrt 2, keeps this form, which passes recognise; elsewhere small
    values keep their digits.
    """
    x = RealValue(translation.builder, values[0])
    if _is_scaled_negation(x):
        return [(1 - erf(x)).value]
    return expanded("chlo.erfc")(translation, operation, values)


def _is_scaled_negation(x: RealValue) -> bool:
    product = x.b.producer(x.value.name)
    if product is None or not product.is_onnx("Mul"):
        return False
    numbers = [x.b.constants[name] for name in product.inputs if name in x.b.constants]
    negated = [x.b.producer(name) for name in product.inputs]
    scale = float(numbers[0].reshape(-1)[0]) if len(numbers) == 1 and numbers[0].size == 1 else 0.0
    has_minus = any(node is not None and node.is_onnx("Neg") for node in negated)
    return bool(np.isclose(abs(scale), np.sqrt(0.5))) and (has_minus or scale < 0)
