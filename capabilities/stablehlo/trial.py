"""Bytes are read by a process of their own first: MLIR's reader of bytecode trusts what it reads.

Damaged bytecode ends the process that reads it, keeps it for ever, or leaves texts behind that are
none, which end it later; MLIR's text is read with care. What a child process has read and printed
is read again here.
"""

import subprocess
import sys

from tilesmith.search_space.support.errors import ModelError

_SECONDS = 30.0
"""How long the child may take, beside a second for every 10 MB."""

_CHILD = """
import re
import sys
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, sdy, stablehlo
context = ir.Context()
registry = ir.DialectRegistry()
_jax_mlir_ext.register_dialects(registry)
context.append_dialect_registry(registry)
context.load_all_available_dialects()
for dialect in (stablehlo, chlo, sdy):
    dialect.register_dialect(context)
try:
    with context:
        data = sys.stdin.buffer.read()
        module = stablehlo.deserialize_portable_artifact(context, data)
        printed = module.operation.get_asm(
            binary=True, enable_debug_info=True, large_elements_limit=8
        )
        escaped = re.compile(rb"\\\\([0-9A-Fa-f]{2})")
        escaped.sub(lambda found: bytes.fromhex(found[1].decode()), printed).decode()
except Exception as error:
    sys.stdout.buffer.write(str(error).encode(errors="replace"))
    sys.exit(3)
"""


def check_bytes(data: bytes, name: str) -> None:
    """Raise `ModelError` where bytes are no module that can be read here without harm."""
    try:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD],
            input=data, capture_output=True, check=False, timeout=_SECONDS + len(data) / 1e7,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"'{name}' takes more than {_SECONDS:g} s to read, so it is damaged; export it anew"
        ) from error
    if child.returncode == 0:
        return
    said = " ".join(child.stdout.decode(errors="replace").split())[:200]
    why = said if child.returncode == 3 and said else "it ends the process that reads it"
    raise ModelError(f"'{name}' is not a valid StableHLO artifact ({why}); export it anew")
