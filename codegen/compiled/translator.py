"""One function of the compiled subset as one of an LLVM module: its statements.

for i in range(n):          test:  i < n, else end
    if a[i] < 0:    ->      loop:  a[i] < 0, else fi
        break                 then:  end
    total += a[i]             fi:    total += a[i]
                            next:  i += 1, test
"""

import ast
from typing import Any

from llvmlite import ir

from tilesmith.codegen.compiled.expressions import FLOAT, INT, SINGLE, Expressions
from tilesmith.codegen.compiled.signature import FunctionSource


class Translator(Expressions):
    """See the module's docstring; `function` is the result.

    Args:
        name: of the LLVM function.
        names: what the names of the function's module stand for.
        helpers: the translators of the compiled functions that it calls, by name.

    Raises:
        TranslationError: something is not in the subset.
    """

    def __init__(
        self,
        source: FunctionSource,
        module: ir.Module,
        name: str,
        names: dict[str, Any],
        helpers: dict[str, Any],
    ) -> None:
        super().__init__(source, module, name, names, helpers)
        self.loops: list[tuple[ir.Block, ir.Block]] = []
        self.statements(source.tree.body)
        if not self.at.block.is_terminated:
            if self.signature.result != "none":
                raise source.refusal(source.tree.body[-1], "the function may end without a result")
            self.at.ret_void()
        self.entry.branch(self.function.basic_blocks[1])

    def statements(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if not self.at.block.is_terminated:
                self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                pass
            case ast.Expr(value=ast.Call() as called):
                self.call(called)
            case ast.Assign(targets=targets, value=given):
                value = self.value(given)
                for target in targets:
                    self.assign(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as given):
                self.assign(target, self.value(given))
            case ast.AugAssign(target=target, op=operator, value=given):
                self.augment(node, target, operator, given)
            case ast.Return(value=returned):
                self.leave(node, returned)
            case ast.Break():
                self.at.branch(self.loops[-1][1])
            case ast.Continue():
                self.at.branch(self.loops[-1][0])
            case ast.If():
                self.branch(node)
            case ast.While():
                self.repeat(node)
            case ast.For():
                self.count(node)
            case _:
                raise self.source.refusal(
                    node, f"a statement {type(node).__name__} is not translated"
                )

    def assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self.store(target, name, value)
            case ast.Subscript():
                pointer = self.element(target, written=True)
                self.at.store(self.as_element(target, value, pointer), pointer)
            case _:
                raise self.source.refusal(target, "what is assigned to is one local or one element")

    def augment(
        self, node: ast.AST, target: ast.expr, operator: ast.operator, given: ast.expr
    ) -> None:
        """`target operator= given`; an element's index is evaluated once."""
        if not isinstance(target, ast.Subscript):
            old = self.value(target)
            self.assign(target, self.arithmetic(node, operator, old, self.value(given)))
            return
        pointer = self.element(target, written=True)
        total = self.arithmetic(node, operator, self.at.load(pointer), self.value(given))
        self.at.store(self.as_element(node, total, pointer), pointer)

    def as_element(self, node: ast.AST, value: Any, pointer: Any) -> Any:
        """A value as an array's element: numpy rounds it to float32, or widens it from there."""
        kind = pointer.type.pointee
        if kind == SINGLE or (value.type == SINGLE and kind == FLOAT):
            return self.convert(value, kind)
        return self.expect(node, value, kind, "an element")

    def leave(self, node: ast.Return, returned: ast.expr | None) -> None:
        nothing = returned is None or ast.unparse(returned) == "None"
        if nothing != (self.signature.result == "none"):
            raise self.source.refusal(node, "what is returned is not what the annotation says")
        if returned is None or nothing:
            self.at.ret_void()
        else:
            value = self.value(returned)
            self.at.ret(self.expect(node, value, self.result, "the result"))

    def branch(self, node: ast.If) -> None:
        then, other, after = self.block("then"), self.block("else"), self.block("fi")
        self.at.cbranch(self.truth(node.test), then, other)
        before, reached = self.assigned, list[set[str]]()
        for block, body in ((then, node.body), (other, node.orelse)):
            self.at.position_at_end(block)
            self.assigned = set(before)
            self.statements(body)
            if not self.at.block.is_terminated:
                self.at.branch(after)
                reached.append(self.assigned)
        self.at.position_at_end(after)
        self.assigned = set.intersection(*reached) if reached else before
        if not reached:
            self.at.unreachable()

    def repeat(self, node: ast.While) -> None:
        self.whole(node)
        test, body, after = self.block("test"), self.block("loop"), self.block("end")
        self.at.branch(test)
        self.at.position_at_end(test)
        self.at.cbranch(self.truth(node.test), body, after)
        self.at.position_at_end(body)
        self.loop(node.body, test, after)

    def whole(self, node: ast.While | ast.For) -> None:
        if node.orelse:
            raise self.source.refusal(node, "a loop with 'else' is not translated")

    def count(self, node: ast.For) -> None:
        self.whole(node)
        if not isinstance(node.target, ast.Name):
            raise self.source.refusal(node, "a loop has one variable")
        start, stop, step = self.range(node.iter)
        test, body, after = self.block("test"), self.block("loop"), self.block("end")
        advance = self.block("next")
        counter = self.entry.alloca(INT)
        self.at.store(start, counter)
        self.at.branch(test)
        self.at.position_at_end(test)
        current = self.at.load(counter)
        more = self.at.icmp_signed("<" if step > 0 else ">", current, stop)
        self.at.cbranch(more, body, after)
        self.at.position_at_end(advance)
        self.at.store(self.at.add(self.at.load(counter), INT(step)), counter)
        self.at.branch(test)
        self.at.position_at_end(body)
        before = set(self.assigned)
        self.store(node, node.target.id, current)
        self.loop(node.body, advance, after)
        self.assigned = before

    def range(self, node: ast.expr) -> tuple[Any, Any, int]:
        """Start, stop and step of what a loop runs over."""
        match node:
            case ast.Call(func=ast.Name(id="range"), args=[_, *_] as given, keywords=[]):
                bounds = [self.number(self.value(argument)) for argument in given[:3]]
            case _:
                raise self.source.refusal(node, "a loop runs over a range")
        if any(bound.type != INT for bound in bounds):
            raise self.source.refusal(node, "bounds of a range are ints")
        if len(bounds) == 1:
            return INT(0), bounds[0], 1
        step = bounds[2] if len(bounds) > 2 else INT(1)
        if not isinstance(step, ir.Constant) or step.constant == 0:
            raise self.source.refusal(node, "the step of a range is a constant other than 0")
        return bounds[0], bounds[1], int(step.constant)

    def loop(self, body: list[ast.stmt], again: ir.Block, after: ir.Block) -> None:
        """A loop's body; what only it assigns may have no value after it."""
        before = set(self.assigned)
        self.loops.append((again, after))
        self.statements(body)
        self.loops.pop()
        if not self.at.block.is_terminated:
            self.at.branch(again)
        self.at.position_at_end(after)
        self.assigned = before
