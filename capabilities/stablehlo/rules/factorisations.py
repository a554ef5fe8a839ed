"""Linear algebra: StableHLO's own operations, and the routines of LAPACK that JAX calls for CPUs.

They run on the host (`compiler.host.operators.factorisations`), whichever way they are written.
"""

from __future__ import annotations

from typing import Any

from tilesmith.capabilities.stablehlo.attributes import place_of, tensor_type, text
from tilesmith.capabilities.stablehlo.translator import Rule, Translation, Values, rules
from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN

_NOT_TRANSPOSED, _LEFT, _LOWER, _UNIT, _WITHOUT, _ALL = (ord(letter) for letter in "NLLUNA")
"""Letters by which LAPACK's options are stated."""


def _on_host(
    translation: Translation, operation: Any, values: Values, operator: str, **options: Any
) -> Values:
    b = translation.builder
    results = [tensor_type(result.type, place_of(operation)) for result in operation.results]
    shapes = [(kind.dtype, kind.shape) for kind in results]
    names = [b.full(value).name for value in values]
    return b.add_many(operator, names, shapes, domain=INTERNAL_DOMAIN, **options)


def _option(translation: Translation, operation: Any, name: str) -> int:
    """An option of a routine: the code of a letter.

    Raises:
        ModelError: the call does not state it.
    """
    try:
        return int(operation.attributes["mhlo.backend_config"][name].value)
    except (KeyError, TypeError, AttributeError):  # none at all, or of another kind
        target = text(operation, "call_target_name")
        raise translation.refuse(
            operation, f"calls '{target}' without its option '{name}'"
        ) from None


@rules.register("lapack.potrf")
def _potrf(translation: Translation, operation: Any, values: Values) -> Values:
    lower = int(_option(translation, operation, "uplo") == _LOWER)
    return _on_host(translation, operation, values, "Cholesky", lower=lower)


@rules.register("lapack.trsm")
def _trsm(translation: Translation, operation: Any, values: Values) -> Values:
    return _on_host(
        translation, operation, values, "TriangularSolve",
        left=int(_option(translation, operation, "side") == _LEFT),
        lower=int(_option(translation, operation, "uplo") == _LOWER),
        transpose=int(_option(translation, operation, "trans_x") != _NOT_TRANSPOSED),
        unit=int(_option(translation, operation, "diag") == _UNIT),
    )  # fmt: skip


@rules.register("lapack.syevd")
def _syevd(translation: Translation, operation: Any, values: Values) -> Values:
    return _on_host(
        translation, operation, values, "Eigenvectors",
        lower=int(_option(translation, operation, "uplo") == _LOWER),
        vectors=int(_option(translation, operation, "mode") != _WITHOUT),
    )  # fmt: skip


@rules.register("lapack.gesdd")
def _gesdd(translation: Translation, operation: Any, values: Values) -> Values:
    mode = _option(translation, operation, "mode")
    return _on_host(
        translation, operation, values, "SingularVectors",
        vectors=int(mode != _WITHOUT), full=int(mode == _ALL),
    )  # fmt: skip


def _without_options(operator: str) -> Rule:
    def rule(translation: Translation, operation: Any, values: Values) -> Values:
        return _on_host(translation, operation, values, operator)

    return rule


for _routine, _operator in (
    ("getrf", "LU"), ("geqrf", "Reflections"), ("orgqr", "FromReflections"),
):  # fmt: skip
    rules.register(f"lapack.{_routine}")(_without_options(_operator))


@rules.register("stablehlo.cholesky")
def _cholesky(translation: Translation, operation: Any, values: Values) -> Values:
    b, (x,) = translation.builder, values
    lower = int(_flag(operation, "lower"))
    shapes = [(x.dtype, x.shape), ("int32", x.shape[:-2])]
    names = [b.full(x).name]
    factor = b.add_many("Cholesky", names, shapes, domain=INTERNAL_DOMAIN, lower=lower)
    return factor[:1]


@rules.register("stablehlo.triangular_solve")
def _triangular_solve(translation: Translation, operation: Any, values: Values) -> Values:
    return _on_host(
        translation, operation, values, "TriangularSolve",
        left=int(_flag(operation, "left_side")), lower=int(_flag(operation, "lower")),
        transpose=int("NO_TRANSPOSE" not in str(operation.attributes["transpose_a"])),
        unit=int(_flag(operation, "unit_diagonal")),
    )  # fmt: skip


def _flag(operation: Any, name: str) -> bool:
    return name in operation.attributes and bool(operation.attributes[name].value)
