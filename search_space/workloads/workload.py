"""`Workload`: what to compute, with a canonical key that no environment changes.

A workload is an operator, its shape parameters and attributes, its dtypes, which operands are
constant, and the epilogue fused into it. Its key is also its command-line form, so that a person
can type one:

    matmul m=512 n=512 k=512 const=b epilogue=bias,relu

Extents may vary from run to run: then a formula over sizes (`search_space.ir.sizes`) stands in
brackets, as in m=[batch*sequence], and the workload is *symbolic*. `at` gives it numbers; what asks
a symbolic extent for its number is refused, for any answer would be right at one size only.

Invariants: parameters stand in the order the operator's template declares them, those at their
default, or that say the same, are left out (so a parameter added later changes no old key);
`parse(key)` gives the workload back.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, ClassVar, Protocol

from tilesmith.search_space.expressions.dtypes import check_dtype
from tilesmith.search_space.expressions.expression import Expr, ExprLike, as_expr
from tilesmith.search_space.expressions.sizes import extent_parts, extent_text, parse_extent
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.support.registry import Registry
from tilesmith.search_space.support.suggestions import did_you_mean
from tilesmith.search_space.workloads.epilogue import EpilogueStep
from tilesmith.search_space.workloads.parameter import Parameter, ParameterValue

__all__ = ["ParameterValue", "Signature", "Workload", "operators", "shape_text", "signature_of"]

_COMMON = ("dtype", "const", "epilogue", "sums")

SUMS = ("any", "same")
"""How schedules add floating-point numbers: in any order, or all of them in the same."""


class Signature(Protocol):
    """What a workload of an operator is checked against; every `Template` is one."""

    parameters: ClassVar[tuple[Parameter, ...]]
    fuses_epilogues: ClassVar[bool]
    examples: ClassVar[tuple[str, ...]]

    def canonical(self, values: dict[str, ParameterValue]) -> dict[str, ParameterValue]:
        """Parameters by name, in order; what says the same as a default is that default."""

    def check(self, workload: "Workload") -> None:
        """Raise `WorkloadError` for parameters that contradict each other."""

    def result_dtype(self, workload: "Workload") -> str:
        """Element type of the result; `WorkloadError` where the epilogue's steps do not fit."""


operators: Registry[Any] = Registry("operator", "tilesmith.search_space.operators", WorkloadError)
"""Classes of templates by operator. `template.templates` is the same; templates speak of workloads,
so that here no more is known of them than their signature."""


@cache
def signature_of(operator: str) -> Signature:
    """The signature of an operator; `WorkloadError` if there is none."""
    signature: Signature = operators[operator]()
    return signature


@lru_cache(maxsize=4096)
def _check(workload: "Workload") -> None:
    """Whether its parameters agree, once for equal workloads: layers of a model repeat them.

    Raises:
        WorkloadError: as `Signature.check`.
    """
    signature_of(workload.operator).check(workload)


@dataclass(frozen=True)
class Workload:
    """One operator instance. Build it with `Workload.of` or `Workload.parse`.

    Attributes:
        operator: name of a registered template.
        parameters: every parameter of the template, defaults filled in, in declared order.
        dtype: element type of inputs and output.
        constants: names of operands known at compile time (weights), sorted.
        epilogue: steps applied to the result before it is stored.
        sums: one of `SUMS`; "same": schedules stay inside one order of summation.
    """

    operator: str
    parameters: tuple[tuple[str, ParameterValue], ...]
    dtype: str = "float32"
    constants: tuple[str, ...] = ()
    epilogue: tuple[EpilogueStep, ...] = ()
    sums: str = SUMS[0]

    @classmethod
    def of(
        cls,
        operator: str,
        parameters: Mapping[str, ParameterValue | Expr],
        *,
        dtype: str = "float32",
        constants: Iterable[str] = (),
        epilogue: Iterable[EpilogueStep] = (),
        sums: str = SUMS[0],
    ) -> "Workload":
        """Check the parameters against the operator's template, fill in defaults.

        Raises:
            WorkloadError: unknown operator, parameter, operand or dtype; a missing or bad value.
                Whether the parameters of a symbolic workload agree is known at its sizes only (`at`
                checks it).
        """
        signature = signature_of(operator)
        known = {p.name: p for p in signature.parameters}
        if unknown := [name for name in parameters if name not in known]:
            meant = did_you_mean(unknown[0], (*known, *_COMMON))
            if not meant and signature.examples:
                meant = f", as in '{signature.examples[0]}'"
            raise WorkloadError(
                f"operator '{operator}' has no parameter '{unknown[0]}'; "
                f"it takes {', '.join(known)}{meant}"
            )
        given = {name: _plain(value) for name, value in parameters.items()}
        filled = {name: p.check(given.get(name), operator) for name, p in known.items()}
        workload = cls(
            operator,
            tuple(signature.canonical(filled).items()),
            check_dtype(dtype),
            tuple(sorted(set(constants))),
            tuple(epilogue),
            check_sums(sums),
        )
        if workload.epilogue and not signature.fuses_epilogues:
            raise WorkloadError(
                f"operator '{operator}' fuses no epilogue; '{workload.epilogue[0]}' needs a "
                "workload of its own"
            )
        signature.result_dtype(workload)
        if not workload.sizes:
            _check(workload)
        return workload

    @classmethod
    def parse(cls, text: str) -> "Workload":
        """Read the command-line form, e.g. ``matmul m=512 n=512 k=512 const=b epilogue=bias,relu``.

        Raises:
            WorkloadError: as `of`, and for a word that is not NAME=VALUE.
        """
        words = text.split()
        if not words:
            raise WorkloadError("an empty workload; write an operator and its parameters")
        given: dict[str, str] = {}
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if not equals or not name or not value:
                raise WorkloadError(f"'{word}' in '{text}' is not of the form NAME=VALUE")
            if name in given:
                raise WorkloadError(f"'{name}' is given twice in '{text}'")
            given[name] = value
        if given.pop("accumulate", "float32") != "float32":  # a word of old keys, never honoured
            raise WorkloadError(
                f"'{text}': the element type of sums is not to choose, each operator says in which "
                "it sums (float32 for floating elements); leave out accumulate="
            )
        common = {name: given.pop(name) for name in _COMMON if name in given}
        return cls.of(
            words[0],
            {name: int(v) if v.lstrip("-").isdigit() else v for name, v in given.items()},
            dtype=common.get("dtype", "float32"),
            constants=[c for c in common.get("const", "").split(",") if c],
            epilogue=[EpilogueStep.parse(s) for s in common.get("epilogue", "").split(",") if s],
            sums=common.get("sums", SUMS[0]),
        )

    @cached_property
    def key(self) -> str:
        """Canonical text; equal workloads have equal keys on every machine."""
        defaults = {p.name: p.default for p in signature_of(self.operator).parameters}
        words = [f"{n}={v}" for n, v in self.parameters if v != defaults[n]]
        if self.dtype != "float32":
            words.append(f"dtype={self.dtype}")
        if self.constants:
            words.append(f"const={','.join(self.constants)}")
        if self.epilogue:
            words.append(f"epilogue={','.join(str(step) for step in self.epilogue)}")
        if self.sums != SUMS[0]:
            words.append(f"sums={self.sums}")
        return " ".join((self.operator, *words))

    @cached_property
    def digest(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the key."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]

    def __getitem__(self, name: str) -> ParameterValue:
        return dict(self.parameters)[name]

    def integer(self, name: str) -> int:
        """An integer parameter.

        Raises:
            WorkloadError: it varies.
        """
        value = self[name]
        if isinstance(value, str) and "[" in value:
            raise self._varying(name)
        assert isinstance(value, int), (self.operator, name, value)
        return value

    def extent(self, name: str) -> ExprLike:
        """An integer parameter, or its formula over sizes where it varies."""
        value = self[name]
        return self.integer(name) if isinstance(value, int) else parse_extent(value)

    def text(self, name: str) -> str:
        """A textual parameter (a shape, a mode)."""
        return str(self[name])

    def shape(self, name: str) -> tuple[int, ...]:
        """A parameter written as a shape or list: '1x64x56x56' (or a bare integer).

        Raises:
            WorkloadError: it is written otherwise, or varies.
        """
        text = str(self[name])
        if "[" in text:
            raise self._varying(name)
        if text in ("", "scalar"):
            return ()
        try:
            return tuple(int(part) for part in text.split("x"))
        except ValueError:
            raise WorkloadError(
                f"'{name}={text}' of operator '{self.operator}' is no list of integers; "
                "write it like 1x64x56x56"
            ) from None

    def extents(self, name: str) -> tuple[ExprLike, ...]:
        """Return a shape whose varying parts are formulas over sizes.

        Raises:
            WorkloadError: it is written otherwise.
        """
        text = str(self[name])
        if "[" not in text:
            return self.shape(name)
        return tuple(
            parse_extent(part) if part.startswith("[") else int(part) for part in extent_parts(text)
        )

    def _varying(self, name: str) -> WorkloadError:
        return WorkloadError(
            f"operator '{self.operator}': {name}={self[name]} varies with "
            f"{', '.join(sorted(self.sizes))}; it has a number only at given sizes"
        )

    @cached_property
    def sizes(self) -> frozenset[str]:
        """Names of the sizes that it varies with; empty unless it is symbolic."""
        names: set[str] = set()
        for name, value in self.parameters:
            if isinstance(value, str) and "[" in value:
                for extent in self.extents(name):
                    names |= as_expr(extent).variables()
        return frozenset(names)

    def at(self, values: Mapping[str, int]) -> "Workload":
        """The workload at these sizes (others may be among them).

        Raises:
            WorkloadError: a size is missing, or the parameters contradict each other there.
        """
        if missing := sorted(self.sizes - set(values)):
            raise WorkloadError(f"'{self.key}' has no number without the size '{missing[0]}'")
        return self.substituted(values) if self.sizes else self

    def substituted(self, values: Mapping[str, ExprLike]) -> "Workload":
        """The workload with other formulas, or numbers, for its sizes."""
        changed: dict[str, ParameterValue | Expr] = {}
        for name, value in self.parameters:
            if isinstance(value, str) and "[" in value:
                extents = [as_expr(e).substitute(values) for e in self.extents(name)]
                single = len(extents) == 1 and not _is_text(self.operator, name)
                changed[name] = extents[0] if single else shape_text(extents)
        return self.with_parameters(**changed)

    def with_parameters(self, **changed: ParameterValue | Expr) -> "Workload":
        """Return the workload with some parameters changed.

        Raises:
            WorkloadError: there are none of these names, or their values do not go together.
        """
        return Workload.of(
            self.operator,
            {**dict(self.parameters), **changed},
            dtype=self.dtype,
            constants=self.constants,
            epilogue=self.epilogue,
            sums=self.sums,
        )

    def is_constant(self, operand: str) -> bool:
        return operand in self.constants

    def __str__(self) -> str:
        return self.key


def canonical_key(text: str) -> str:
    """Today's key of what another version wrote; the text itself where it names no workload."""
    try:
        return Workload.parse(text).key
    except (WorkloadError, ValueError):
        return text


def check_sums(sums: str) -> str:
    """Give back one of `SUMS`; `WorkloadError` for anything else."""
    if sums not in SUMS:
        raise WorkloadError(f"sums={sums} means nothing; use {' or '.join(SUMS)}")
    return sums


def shape_text(shape: Iterable[ExprLike]) -> str:
    """How a shape is written in a workload: '1x64x56x56', '[batch]x12'; 'scalar' for rank zero."""
    return "x".join(extent_text(e) if isinstance(e, Expr) else str(e) for e in shape) or "scalar"


def _plain(value: ParameterValue | Expr) -> ParameterValue:
    """A parameter's value, a formula as its text or number."""
    if not isinstance(value, Expr):
        return value
    return extent_text(value) if value.constant is None else value.constant


def _is_text(operator: str, name: str) -> bool:
    """Whether a parameter is a text, a shape among them."""
    parameter = next(p for p in signature_of(operator).parameters if p.name == name)
    return parameter.text or isinstance(parameter.default, str)
