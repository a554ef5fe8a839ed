"""`Presented`: executables as one meets them in a notebook: called like a function, and shown.

    y = model(x)                         # inputs in order, or by name: model(x, mask=m)

Called, a model with one output gives that array, any other a tuple of them in the order of
`outputs`, as a module of PyTorch does (`run` gives a dictionary). Arrays are numpy's, and may be
handed on by DLPack without copies: `torch.from_dlpack(y)`, `jax.dlpack.from_dlpack(y)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Protocol

from tilesmith.compiler.recipe.program import Report
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.origin import counted
from tilesmith.search_space.support.errors import ModelError


class _Info(Protocol):
    """A tensor that goes in or out; its extents are numbers or formulas."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> Sequence[object] | None: ...


class _Recipe(Protocol):
    @property
    def target(self) -> Target: ...

    @property
    def threads(self) -> int: ...


class Shown(Protocol):
    """What is called and shown; see the attributes of `Executable`."""

    @property
    def name(self) -> str: ...

    @property
    def recipe(self) -> _Recipe: ...

    @property
    def inputs(self) -> Sequence[_Info]: ...

    @property
    def outputs(self) -> Sequence[_Info]: ...

    @property
    def report(self) -> Report: ...

    def run(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]: ...


class Presented:
    """See the module's docstring."""

    def __call__(self: Shown, /, *arrays: Any, **named: Any) -> Any:
        """Run the model.

        Args:
            arrays: its inputs, in order.
            named: those that are not among them, by name; names that Python does not take for
                arguments go in as `**{"input.1": x}`.

        Returns:
            the output's array where there is one, else a tuple of all, in order.

        Raises:
            ModelError, JobError: as `run`; and an input that is given twice, or too many of them.
        """
        names = [info.name for info in self.inputs]
        if len(arrays) > len(names):
            inputs = "1 input" if len(names) == 1 else f"{len(names)} inputs"
            raise ModelError(
                f"'{self.name}' takes {inputs} ({', '.join(names)}), and {len(arrays)} are given"
            )
        given = dict(zip(names, arrays, strict=False))
        for name in given.keys() & named.keys():
            raise ModelError(f"input '{name}' of '{self.name}' is given twice: in order, by name")
        results = self.run({**given, **named})
        outputs = tuple(results[info.name] for info in self.outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def __repr__(self: Shown) -> str:
        lines = [f"{kind:6} {name}  {what}" for kind, name, what in _tensors(self)]
        lines += [f"{kind:6} {what}" for kind, what in _facts(self)]
        return "\n  ".join([f"<{type(self).__name__} '{self.name}'", *lines]) + ">"

    def _repr_html_(self: Shown) -> str:
        rows = [(kind, f"<b>{escape(name)}</b>", escape(what)) for kind, name, what in
                _tensors(self)]  # fmt: skip
        rows += [(kind, "", escape(what)) for kind, what in _facts(self)]
        body = "".join(
            f"<tr><th style='text-align:left'>{kind}</th><td style='text-align:left'>"
            f"{' '.join(part for part in parts if part)}</td></tr>"
            for kind, *parts in rows
        )
        caption = escape(f"{type(self).__name__} {self.name}")
        return f"<table><caption>{caption}</caption>{body}</table>"


def _tensors(shown: Shown) -> Iterable[tuple[str, str, str]]:
    """In or out, its name, its element type and shape."""
    for kind, infos in (("in", shown.inputs), ("out", shown.outputs)):
        for info in infos:
            shape = "of any shape" if info.shape is None else "x".join(map(str, info.shape))
            yield kind, info.name, f"{info.dtype} {shape or 'scalar'}"


def _facts(shown: Shown) -> Iterable[tuple[str, str]]:
    report, recipe = shown.report, shown.recipe
    threads = f"{recipe.threads} thread{'s' if recipe.threads > 1 else ''}"
    yield "runs on", f"{recipe.target.name}, {threads}, {report.precision}"
    yield "kernels", f"{counted(report.origins)}; {report.host} nodes on the host"
    weights, arena = report.constant_bytes / 1e6, report.peak_bytes / 1e6
    yield "memory", f"{weights:.1f} MB of weights, {arena:.1f} MB for each run at once"
