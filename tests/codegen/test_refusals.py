"""What compiled loops cannot do is refused, naming function, file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.codegen.made import HEAD, body, made
from tilesmith.codegen.compiled.function import translate
from tilesmith.search_space.support.errors import TranslationError

REFUSED = {
    "step": (body("for i in range(0, 9, n):", "    n += i", "return n"), "step of a range"),
    "zero step": (body("for i in range(0, 9, 0):", "    n += i", "return n"), "step of a range"),
    "float range": (body("for i in range(x):", "    n += i", "return n"), "bounds of a range"),
    "no range": (body("for i in a:", "    n += i", "return n"), "runs over a range"),
    "for else": (body("for i in range(n):", "    pass", "else:", "    n = 1", "return n"), "else"),
    "while else": (body("while n > 0:", "    n -= 1", "else:", "    n = 1", "return n"), "'else'"),
    "tuple target": (body("n, m = 1, 2", "return n"), "Tuple"),
    "loop of tuples": (body("for i, j in range(n):", "    pass", "return n"), "one variable"),
    "chain": (body("return int(0 < n < 4)"), "chain of comparisons"),
    "is": (body("return int(n is x)"), "comparison Is"),
    "keyword": (body("return min(n, key=1)"), "by position"),
    "starred": (body("return min(*a)"), "by position"),
    "unknown call": (body("return abs(n)"), "'abs' is no compiled function"),
    "method": (body("return a.sum()"), "'a.sum' is no compiled function"),
    "min of one": (body("return min(a)"), "used as a number"),
    "two ints": (body("return int(n, 2)"), "takes one argument"),
    "floor of floats": (body("return int(x // 2)"), "FloorDiv of floats"),
    "rest of floats": (body("return int(x % 2)"), "Mod of floats"),
    "power": (body("return n ** 2"), "Pow of ints"),
    "bits": (body("return ~n"), "UnaryOp"),
    "either value": (body("m = n or 3", "return m"), "of numbers give one of them"),
    "conditional": (body("return 1 if n else 2"), "IfExp"),
    "walrus": (body("while (m := n) > 3:", "    n -= 1", "return n"), "NamedExpr"),
    "word": (body("return int(WORD)"), "no local"),
    "text": (body("return int('1')"), "neither a float nor an int"),
    "long int": (body("return 9223372036854775808"), "64 bits"),
    "float to int": (body("m = 0", "m = x", "return m"), "'m' is an int and would become a float"),
    "int to bool": (body("m = n > 0", "m = n", "return n"), "'m' is a bool"),
    "float element": (body("a[0] = x", "return n"), "an element is an int"),
    "float result": (body("return x"), "the result is an int"),
    "no result": (body("return"), "not what the annotation says"),
    "may end": (body("if n > 0:", "    return 1"), "may end without a result"),
    "unassigned": (body("if n > 0:", "    m = 1", "return m"), "'m' may be read before"),
    "after a loop": (body("for i in range(n):", "    pass", "return i"), "'i' may be read before"),
    "last element": (body("return a[-1]"), "an index is one int"),
    "slice": (body("return a[0:1]"), "Slice"),
    "float index": (body("return a[x]"), "an index is one int"),
    "array as number": (body("return a"), "'a' is used as a number"),
    "array assigned": (body("a = n", "return n"), "stays so"),
    "field assigned": (body("p.scale = 1.0", "return n"), "one local or one element"),
    "unknown field": (body("return int(p.size)"), "'p.size' is no number"),
    "twice": (body("return first(a, a)"), "writes is passed twice"),
    "few arguments": (body("return first(a)"), "2 arguments"),
    "no value": (body("n = nothing(n)", "return n"), "gives no value"),
    "nothing returned": (body("return nothing(n)"), "gives no value"),
    "own constant": (body("n = WHOLE", "WHOLE = 2", "return n"), "'WHOLE' may be read before"),
    "with": (body("with a:", "    pass", "return n"), "statement With"),
    "assert": (body("assert n", "return n"), "statement Assert"),
    "try": (body("try:", "    pass", "finally:", "    pass", "return n"), "statement Try"),
    "lambda": (body("return (lambda: 1)()"), "no compiled function"),
    "recursion": (body("return f(n, x, a, p)"), "calls itself"),
    "no annotation": (body("return n", head="def f(n) -> int:"), "'n' needs an annotation"),
    "no result type": (body("return 1", head="def f(n: int):"), "result needs an annotation"),
    "text result": (body("return n", head="def f(n: int) -> str:"), "result of type str"),
    "list": (body("return n", head="def f(n: list) -> int:"), "of type list"),
    "default": (body("return n", head="def f(n: int = 1) -> int:"), "without defaults"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_translated_is_refused(tmp_path: Path, name: str) -> None:
    text, why = REFUSED[name]
    with pytest.raises(TranslationError) as error:
        translate(made(tmp_path, text))
    assert why in str(error.value) and ".py:" in str(error.value)
    assert "compiled function 'f'" in str(error.value)


def test_the_line_of_what_is_refused_is_named(tmp_path: Path) -> None:
    text = body("m = 0", "m += n", "return m ** 2")
    with pytest.raises(TranslationError, match=rf":{HEAD.count(chr(10)) + 4}\): Pow of ints"):
        translate(made(tmp_path, text))
