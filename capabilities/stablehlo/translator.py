"""StableHLO module -> `Graph`: functions put where they are called, each operation by its rule.

A rule is a function `(translation, operation, values) -> values`, registered under the operation's
name by a file of `stablehlo/rules`. What no rule takes is refused in a sentence that names the
operation and where it comes from. Semantics are those of the StableHLO specification
(https://openxla.org/stablehlo/spec, version 1.17 of the dialect).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilesmith.capabilities.stablehlo import pairs
from tilesmith.capabilities.stablehlo.attributes import is_complex, name_of, place_of, tensor_type
from tilesmith.capabilities.stablehlo.builder import GraphBuilder, TensorValue
from tilesmith.capabilities.stablehlo.passes import legalised, with_shapes
from tilesmith.compiler.graph.graph import Graph
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.support.registry import Registry

Values = Sequence[TensorValue]
Rule = Callable[["Translation", Any, Values], Values]

rules: Registry[Rule] = Registry("StableHLO operation", "tilesmith.capabilities.stablehlo.rules")

_DEEPEST = 100
"""Calls and regions within each other."""


class Translation:
    """State of one module's translation.

    Attributes:
        builder: the graph so far.
    """

    def __init__(self, module: Any, name: str) -> None:
        self.builder = GraphBuilder(name)
        self.name = name
        self._module = module  # operations live as long as it does
        self._functions = _functions(module)
        self._depth = 0

    def graph(
        self,
        names: Sequence[str] = (),
        constants: Sequence[Any] = (),
        outputs: Sequence[str] = (),
    ) -> Graph:
        """The graph of the module's main function.

        Args:
            names: of the inputs that are left, in order; those of the module where left out.
            constants: arrays for the first arguments, which then are no inputs.
            outputs: names of the results; those of the module where left out.
        """
        main = self._main()
        block = main.regions[0].blocks[0]
        held = len(constants)
        inputs = [self._input(argument, n, names[n - held : n - held + 1])
                  for n, argument in enumerate(block.arguments) if n >= held]  # fmt: skip
        arguments = [*(pairs.constant(self.builder, array) for array in constants), *inputs]
        results = self.region(main.regions[0], arguments)
        results = [pairs.stacked(self.builder, result) for result in results]
        if not results:
            raise ModelError(f"'{self.name}' has no results, so there is nothing to compile")
        given = outputs or _result_names(main, len(results))
        return self.builder.graph(list(zip(given, results, strict=True)))

    def _input(self, argument: Any, number: int, named: Sequence[str]) -> TensorValue:
        kind = tensor_type(argument.type, f"input {number} of '{self.name}'")
        base = named[0] if named else self._named(argument, number)
        if is_complex(argument.type):
            pair = self.builder.input(base, kind.dtype, (*kind.shape, 2))
            return pairs.parted(self.builder, pair)
        return self.builder.input(base, kind.dtype, kind.shape)

    def fix(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Give inputs of open shape the shapes asked for; errors as `passes.with_shapes`."""
        with_shapes(self._module, self._main(), self.input_names(), shapes, self.name)
        self._functions = _functions(self._module)

    def input_names(self) -> list[str]:
        """The inputs' names, in order."""
        return [self._named(argument, n) for n, argument in enumerate(self._main().arguments)]

    def _named(self, argument: Any, number: int) -> str:
        """The name of an input; of one without, that of the function's that it goes to."""
        name = _argument_name(argument)
        for use in argument.uses if not name else ():
            function = self._functions.get(_text(use.owner, "callee").lstrip("@"))
            if use.owner.operation.name == "func.call" and function is not None:
                name = name or _argument_name(list(function.arguments)[use.operand_number])
        return name or f"input{number}"

    def _main(self) -> Any:
        if not self._functions:
            raise ModelError(f"'{self.name}' has no function, so there is nothing to compile")
        public = [f for f in self._functions.values() if _text(f, "sym_visibility") != "private"]
        main = self._functions.get("main") or (public or list(self._functions.values()))[0]
        if not list(main.regions[0].blocks):
            raise ModelError(f"function '{_symbol(main)}' of '{self.name}' has no body")
        return main

    def call(self, name: str, values: Values, where: str) -> Values:
        """What a function of the module gives for values."""
        function = self._functions.get(name)
        if function is None or not list(function.regions[0].blocks):
            raise ModelError(f"{where} calls '{name}', which '{self.name}' does not define")
        return self.region(function.regions[0], values)

    def region(
        self, region: Any, values: Values, outer: dict[Any, TensorValue] | None = None
    ) -> Values:
        """What a region gives for values of its arguments.

        Args:
            outer: what the region may read from around it.
        """
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ModelError(
                f"functions and regions of '{self.name}' are nested more than {_DEEPEST} deep, or "
                "a function calls itself; neither is supported"
            )
        blocks = list(region.blocks)
        if len(blocks) != 1:
            raise ModelError(f"a region of '{self.name}' has {len(blocks)} blocks; one is expected")
        known = dict(outer or {})
        known.update(zip(blocks[0].arguments, values, strict=True))
        for operation in blocks[0].operations:
            if operation.operation.name in _ENDS:
                self._depth -= 1
                return [self._read(known, operand, operation) for operand in operation.operands]
            self._translate(operation, known)
        raise ModelError(f"a region of '{self.name}' does not return anything")

    def _translate(self, operation: Any, known: dict[Any, TensorValue]) -> None:
        name = operation.operation.name
        values = [self._read(known, operand, operation) for operand in operation.operands]
        rule = rule_of(name, operation, values)
        if rule is None:
            raise ModelError(
                f"{place_of(operation.operation)} of '{self.name}' is not supported; compute it "
                "outside of the function"
            )
        self.known = known
        self.builder.place = name_of(operation.operation)
        results = rule(self, operation.operation, values)
        for result, value in zip(operation.results, results, strict=True):
            known[result] = value

    def _read(self, known: dict[Any, TensorValue], operand: Any, operation: Any) -> TensorValue:
        value = known.get(operand)
        if value is None:
            raise ModelError(
                f"{place_of(operation.operation)} of '{self.name}' reads what is not computed "
                "before it"
            )
        return value

    def refuse(self, operation: Any, why: str) -> ModelError:
        """An error that says what of an operation is not supported."""
        return ModelError(f"{place_of(operation)} of '{self.name}' {why}")


_EXPANDED = ("chlo.", "stablehlo.exponential", "stablehlo.log", "stablehlo.sqrt")
"""Operations that StableHLO's own passes write as others: those of CHLO, and of complex numbers."""


def _is_of_pairs(operation: Any, values: Values) -> bool:
    """Whether complex numbers go in or come out."""
    return any(isinstance(value, pairs.Complex) for value in values) or any(
        is_complex(result.type) for result in operation.results
    )


def rule_of(name: str, operation: Any, values: Values) -> Rule | None:
    """The rule of a kind of operations, for these operands and results; None where it has none."""
    rule = rules.find(f"complex.{name}" if _is_of_pairs(operation, values) else name)
    return expanded(name) if rule is None and name.startswith(_EXPANDED) else rule


def expanded(name: str) -> Rule:
    """The rule of an operation without one of its own: as StableHLO's own passes write it."""

    def rule(translation: Translation, operation: Any, values: Values) -> Values:
        module = legalised(operation, name, translation.name)
        (main,) = module.body
        kinds = [str(result.type) for result in operation.results]
        if any(
            op.operation.name == name and [str(r.type) for r in op.results] == kinds
            for op in main.regions[0].blocks[0].operations
        ):
            raise translation.refuse(
                operation, "is not supported; compute it outside of the function"
            )
        return translation.region(main.regions[0], values)

    return rule


_ENDS = ("func.return", "stablehlo.return", "mhlo.return", "sdy.return")


def _symbol(operation: Any) -> str:
    return _text(operation, "sym_name")


def _text(operation: Any, name: str) -> str:
    attributes = operation.operation.attributes
    return str(attributes[name].value) if name in attributes else ""


def _argument_name(argument: Any) -> str:
    """The name of an argument in the module's text, if it has one."""
    location = getattr(argument, "location", None)
    try:
        return str(location.name_str)  # type: ignore[union-attr]
    except (AttributeError, ValueError, TypeError, RuntimeError):
        return ""


def _functions(module: Any) -> dict[str, Any]:
    return {_symbol(op): op for op in module.body if op.operation.name == "func.func"}


def _result_names(function: Any, count: int) -> list[str]:
    """Names of results: JAX's own ("result[0]"), where the module says them."""
    try:
        listed = list(function.operation.attributes["res_attrs"])
        return [
            str(entry["jax.result_info"].value) or f"result{i}" for i, entry in enumerate(listed)
        ]
    except (KeyError, ValueError, TypeError, AttributeError):
        return ["result"] if count == 1 else [f"result{i}" for i in range(count)]
