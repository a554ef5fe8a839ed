"""Linear algebra: StableHLO's own operations, and the routines of LAPACK that JAX calls for CPUs.

They run on the host (`compiler.host.operators.factorisations`), whichever way they are written.
"""

from typing import Any

from tilesmith.capabilities.stablehlo.attributes import place_of, tensor_type, text
from tilesmith.capabilities.stablehlo.translator import Rule, Translation, Values, rules
from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN

_ROUTINES: dict[str, tuple[str, dict[str, tuple[str, str, bool]]]] = {
    "potrf": ("Cholesky", {"lower": ("uplo", "L", True)}),
    "trsm": ("TriangularSolve", {
        "left": ("side", "L", True), "lower": ("uplo", "L", True),
        "transpose": ("trans_x", "N", False), "unit": ("diag", "U", True),
    }),
    "syevd": ("Eigenvectors", {"lower": ("uplo", "L", True), "vectors": ("mode", "N", False)}),
    "gesdd": ("SingularVectors", {"vectors": ("mode", "N", False), "full": ("mode", "A", True)}),
    "getrf": ("LU", {}), "geqrf": ("Reflections", {}), "orgqr": ("FromReflections", {}),
}  # fmt: skip
"""By routine of LAPACK: the host's operator; and of each of its options which option of the routine
says it, by which letter, and whether that letter means yes."""


def _on_host(
    translation: Translation, operation: Any, values: Values, operator: str, **options: bool
) -> Values:
    b = translation.builder
    results = [tensor_type(result.type, place_of(operation)) for result in operation.results]
    shapes = [(kind.dtype, kind.shape) for kind in results]
    names = [b.full(value).name for value in values]
    numbers: dict[str, Any] = {name: int(option) for name, option in options.items()}
    return b.add_many(operator, names, shapes, domain=INTERNAL_DOMAIN, **numbers)


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


def _routine(operator: str, stated: dict[str, tuple[str, str, bool]]) -> Rule:
    def rule(translation: Translation, operation: Any, values: Values) -> Values:
        options = {
            name: (_option(translation, operation, option) == ord(letter)) == yes
            for name, (option, letter, yes) in stated.items()
        }
        return _on_host(translation, operation, values, operator, **options)

    return rule


for _name, _row in _ROUTINES.items():
    rules.register(f"lapack.{_name}")(_routine(*_row))


@rules.register("stablehlo.cholesky")
def _cholesky(translation: Translation, operation: Any, values: Values) -> Values:
    b, (x,) = translation.builder, values
    shapes = [(x.dtype, x.shape), ("int32", x.shape[:-2])]
    lower = int(_flag(operation, "lower"))
    return b.add_many("Cholesky", [b.full(x).name], shapes, domain=INTERNAL_DOMAIN, lower=lower)[:1]


@rules.register("stablehlo.triangular_solve")
def _triangular_solve(translation: Translation, operation: Any, values: Values) -> Values:
    return _on_host(
        translation, operation, values, "TriangularSolve",
        left=_flag(operation, "left_side"), lower=_flag(operation, "lower"),
        transpose="NO_TRANSPOSE" not in str(operation.attributes["transpose_a"]),
        unit=_flag(operation, "unit_diagonal"),
    )  # fmt: skip


def _flag(operation: Any, name: str) -> bool:
    return name in operation.attributes and bool(operation.attributes[name].value)
