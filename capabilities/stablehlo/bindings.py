"""jaxlib's bindings of MLIR: a context that knows the dialects, modules out of text or bytes.

jaxlib is an optional dependency, imported here alone. Every fault of a module becomes a
`ModelError` of one sentence.
"""

from functools import cache
from typing import Any

from tilesmith.capabilities.stablehlo.trial import check_bytes
from tilesmith.search_space.support.errors import DependencyError, ModelError

_DEEPEST = 200
"""Brackets within brackets that a module's text may have: the parser recurses, and what is nested
deeper than its stack ends the process."""

_BYTECODE = b"ML\xefR"


@cache
def _libraries() -> tuple[Any, Any]:
    """jaxlib's MLIR and StableHLO's part of it."""
    try:
        from jaxlib.mlir import ir
        from jaxlib.mlir.dialects import stablehlo
    except ImportError as error:
        raise DependencyError(
            "StableHLO modules are read with jaxlib, which is not installed; "
            "install it with: pip install 'tilesmith[jax]'"
        ) from error
    return ir, stablehlo


def mlir() -> Any:
    """The module `jaxlib.mlir.ir`; `DependencyError` where jaxlib is not installed."""
    return _libraries()[0]


def stablehlo() -> Any:
    """The module `jaxlib.mlir.dialects.stablehlo`."""
    return _libraries()[1]


def context() -> Any:
    """A context for one module; constants are views of its memory, which lives as long as they."""
    ir = mlir()
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, sdy

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    module_context = ir.Context()
    module_context.append_dialect_registry(registry)
    module_context.load_all_available_dialects()
    for dialect in (stablehlo(), chlo, sdy):
        dialect.register_dialect(module_context)
    return module_context


def parse(module: str | bytes, name: str) -> Any:
    """A verified module out of MLIR's text, its bytecode, or a portable artifact.

    Args:
        name: of the module, for messages.

    Raises:
        ModelError: the text or the bytes are no module, or one whose operations are not as their
            specifications say.
    """
    if isinstance(module, bytes) and not module.startswith(_BYTECODE):
        try:
            module = module.decode()
        except UnicodeDecodeError as error:
            raise ModelError(
                f"'{name}' is neither MLIR text nor a StableHLO artifact; export the model anew"
            ) from error
    if isinstance(module, str):
        _check_text(module, name)
    else:
        _libraries()
        check_bytes(module, name)
    ir, owner = mlir(), context()
    try:
        with owner:
            if isinstance(module, bytes):
                return stablehlo().deserialize_portable_artifact(owner, module)
            return ir.Module.parse(module)
    except (ir.MLIRError, ValueError, RuntimeError) as error:
        raise ModelError(f"'{name}' is not a valid StableHLO module: {first_fault(error)}") from (
            error
        )


def first_fault(error: Exception) -> str:
    """The first line that says what is wrong, of a message of MLIR's."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    wanted = next((line for line in lines if line.startswith("error:")), "")
    message = wanted.removeprefix("error: ") or " ".join(lines)
    return (message.rpartition('"): ')[2] or message)[:300] or "it cannot be read"


def _check_text(text: str, name: str) -> None:
    if "\0" in text or not text.strip():
        raise ModelError(f"'{name}' holds no MLIR text; export the model anew")
    depth = deepest = 0
    for character in text if len(text) < 1 << 20 else _without_constants(text):
        if character in "({[<":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")}]>":
            depth = max(0, depth - 1)
    if deepest > _DEEPEST:
        raise ModelError(
            f"'{name}' nests brackets {deepest} deep; at most {_DEEPEST} are read: write its "
            "regions as functions"
        )


def _without_constants(text: str) -> str:
    """Text without long hexadecimal constants, which have no brackets."""
    parts = text.split('"0x')
    return "".join([parts[0], *(part.partition('"')[2] for part in parts[1:])])
