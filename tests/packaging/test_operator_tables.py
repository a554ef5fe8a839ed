"""What is known of ONNX's operators stands in one table, and few others name many of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import onnx.defs

ROOT = Path(__file__).parents[2]
SOURCES = (
    "tilesmith", "capabilities", "families", "tuner", "compiler", "simulator", "records", "codegen",
    "search_space",
)  # fmt: skip
OPERATORS = {schema.name for schema in onnx.defs.get_all_schemas_with_history()}

ALLOWED = {
    "compiler/graph/operator_traits.py": 1,  # the table
    "compiler/formulas/pointwise_formulas.py": 1,  # formulas of elementwise operators
    "compiler/graph/fitting_inputs.py": 1,  # numbers that fit operands which tell shapes
    "compiler/graph/cells.py": 1,  # activations of recurrent layers
    "compiler/host/runtime.py": 1,  # where onnxruntime differs from the standard, and how
    "compiler/onnx/inference/shape_faults.py": 1,  # what is wrong with shapes together
    "compiler/onnx/inference/words.py": 1,  # the standard's words of attributes
    "capabilities/fault_finding/references/left_open.py": 1,  # what the standard leaves open
}
"""Tables that name five operators or more, by file: what is known of one operator each."""


def names(node: ast.AST) -> set[str]:
    """The operators that a table names."""
    match node:
        case ast.Set(elts=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
            pass
        case ast.Dict(keys=keys):
            parts = [key for key in keys if key is not None]
        case ast.Constant(value=str() as text):
            return OPERATORS & set(text.replace(":", " ").split())
        case _:
            return set()
    firsts = [part.elts[0] if isinstance(part, ast.Tuple) and part.elts else part for part in parts]
    words = {part.value for part in firsts if isinstance(part, ast.Constant)}
    return {word for word in words if isinstance(word, str)} & OPERATORS


def tables(source: str) -> Iterator[int]:
    """Lines of the tables in a file that name five operators or more."""
    words = set(re.findall(r"\w+", source.replace("\\n", " ")))
    if len(words & OPERATORS) < 5:
        return  # parsing all sources takes seconds
    tree = ast.parse(source)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) not in documentation and len(names(node)) >= 5:
            yield node.lineno  # type: ignore[attr-defined]


def test_tables_of_operators_are_few() -> None:
    counts = {}
    for folder in SOURCES:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if lines := [*tables(file.read_text())]:
                counts[str(file.relative_to(ROOT))] = len(lines)
    assert counts == ALLOWED, "a trait that several ask for is a word of operator_traits"
