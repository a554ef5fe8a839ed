"""`CompiledModel`: what executables of all kinds are: called like a function, shown, kept in files.

    y = model(x)                         # inputs in order, or by name: model(x, mask=m)

Called, a model with one output gives that array, any other a tuple of them in the order of
`outputs`, as a module of PyTorch does (`run` gives a dictionary). Arrays are numpy's, and may be
handed on by DLPack without copies: `torch.from_dlpack(y)`, `jax.dlpack.from_dlpack(y)`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray

from tilesmith.compiler.artifact.artifact import artifact_bytes, write_artifact
from tilesmith.compiler.backends.shipping import Kind, Library, LibraryRequest, Weights, emitter_of
from tilesmith.compiler.graph.graph import TensorInfo
from tilesmith.compiler.recipe.program import Recipe, Report
from tilesmith.compiler.recipe.variants import VaryingInfo, VaryingRecipe
from tilesmith.search_space.results.origin import counted
from tilesmith.search_space.support.errors import ModelError


class CompiledModel(ABC):
    """See the module's docstring."""

    recipe: Recipe | VaryingRecipe

    # -- questions ------------------------------------------------------------------------------
    @property
    def name(self) -> str:
        """The model's name."""
        return self.recipe.name

    @property
    def title(self) -> str:
        """What messages call it: its file's name, or its own where it came of none."""
        return self.recipe.title

    @property
    def source(self) -> str:
        """Name and content hash of the model's file, "NAME sha256:HEX"; "" if there was none."""
        return self.recipe.source

    @property
    def report(self) -> Report:
        """How many kernels are tuned, fell back, are untuned; what runs on the host; memory. Of a
        model whose sizes vary, at the largest sizes; see `recipe.variants` for the rest."""
        return self.recipe.report

    @property
    @abstractmethod
    def inputs(self) -> Sequence[TensorInfo | VaryingInfo]:
        """What `run` takes, in order."""

    @property
    @abstractmethod
    def outputs(self) -> Sequence[TensorInfo | VaryingInfo]:
        """What `run` gives, in order."""

    # -- running --------------------------------------------------------------------------------
    @abstractmethod
    def run(self, inputs: Mapping[str, Any]) -> Mapping[str, NDArray[Any]]:
        """Run the model on an array for every input, by name."""

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
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

    # -- files ----------------------------------------------------------------------------------
    def save(self, path: str | Path) -> None:
        """Write the model as one file (`.tsm`); errors as `search_space.support.files.written`.

        Raises:
            ModelError: it is a model at one of many sizes (`VaryingExecutable.at`).
        """
        self._check_whole()
        write_artifact(self.recipe, Path(path))

    def _check_whole(self) -> None:  # noqa: B027 (most models are)
        """Refuse what is no model by itself."""

    def __reduce__(self) -> tuple[Callable[[bytes], Self], tuple[bytes]]:
        """Pickled it is its artifact's bytes: weights, too. Processes of one machine that are
        given the path of an artifact instead, and load it, share its weights."""
        self._check_whole()
        return type(self).loads, (artifact_bytes(self.recipe),)

    @classmethod
    @abstractmethod
    def loads(cls, data: bytes) -> Self:
        """Read the bytes of an artifact of this kind.

        Raises:
            ModelError: damaged, not an artifact, or of a newer format.
            TargetError: it needs an instruction set this machine does not have.
        """

    def emit_library(
        self,
        path: str | Path,
        kind: Kind = "library",
        *,
        weights: Weights = "inside",
        prefix: str = "",
    ) -> Library:
        """Write the model as a library for programs without Python, a C header beside it.

        Args:
            path, kind, weights, prefix: as `LibraryRequest`.

        Raises:
            TargetError: the target's models are simulated here.
            ModelError: parts of it run on the host, or it is a model at one of many sizes.
            DependencyError: nothing here links shared libraries.
            InputError, JobError: a file cannot be written, or linking fails.
        """
        request = LibraryRequest(Path(path), kind, weights, prefix)
        request.check()
        return emitter_of(self.recipe.target).emit(self.recipe, request)

    # -- shown ----------------------------------------------------------------------------------
    def __repr__(self) -> str:
        lines = [f"{kind:6} {name}  {what}" for kind, name, what in self._tensors()]
        lines += [f"{kind:6} {what}" for kind, what in self._facts()]
        return "\n  ".join([f"<{type(self).__name__} '{self.name}'", *lines]) + ">"

    def _repr_html_(self) -> str:
        rows = [(kind, f"<b>{escape(name)}</b>", escape(what)) for kind, name, what in
                self._tensors()]  # fmt: skip
        rows += [(kind, "", escape(what)) for kind, what in self._facts()]
        body = "".join(
            f"<tr><th style='text-align:left'>{kind}</th><td style='text-align:left'>"
            f"{' '.join(part for part in parts if part)}</td></tr>"
            for kind, *parts in rows
        )
        caption = escape(f"{type(self).__name__} {self.name}")
        return f"<table><caption>{caption}</caption>{body}</table>"

    def _tensors(self) -> Iterable[tuple[str, str, str]]:
        """In or out, its name, its element type and shape."""
        for kind, infos in (("in", self.inputs), ("out", self.outputs)):
            for info in infos:
                shape = "of any shape" if info.shape is None else "x".join(map(str, info.shape))
                yield kind, info.name, f"{info.dtype} {shape or 'scalar'}"

    def _facts(self) -> Iterable[tuple[str, str]]:
        report, recipe = self.report, self.recipe
        threads = f"{recipe.threads} thread{'s' if recipe.threads > 1 else ''}"
        yield "runs on", f"{recipe.target.name}, {threads}, {report.precision}"
        yield "kernels", f"{counted(report.origins)}; {report.host} nodes on the host"
        weights, arena = report.constant_bytes / 1e6, report.peak_bytes / 1e6
        yield "memory", f"{weights:.1f} MB of weights, {arena:.1f} MB for each run at once"
