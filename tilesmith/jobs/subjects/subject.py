"""What a job is about: a model (of ONNX or of a front end), or operators given as workloads.

Whoever compares an executable in memory needs its model, so the file that it was compiled from is
remembered. Invariant: executables are not kept alive by that, and models in memory are not kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard
from weakref import WeakKeyDictionary

from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload

if TYPE_CHECKING:
    import onnx

    from tilesmith.compiler.driver.front_end import FrontEndModel
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.compiler.varying.executable import VaryingExecutable

    Model = str | Path | onnx.ModelProto | FrontEndModel
    Compiled = Executable | VaryingExecutable
    Subject = Model | Compiled | Workload | Sequence[Workload]


_ARTIFACT_SUFFIX = ".tsm"


@dataclass(frozen=True)
class WeightedWorkload:
    """A workload and how often the subject runs it."""

    workload: Workload
    weight: float = 1.0


def subject_of(model: str | None, operators: Sequence[str]) -> "Subject":
    """What the command line named: exactly one of a model file and `--op` texts.

    Raises:
        InputError: both or neither are given.
        WorkloadError: an operator text is wrong.
    """
    if model and operators:
        raise InputError("give either a model file or --op, not both")
    if model:
        return model
    if not operators:
        raise InputError("give a model file, or an operator with --op 'matmul m=512 n=512 k=512'")
    return [Workload.parse(text) for text in operators]


def workloads_of(subject: Workload | Sequence[Workload]) -> list[WeightedWorkload]:
    """Distinct workloads in order, each weighted by how often it is named."""
    named = [subject] if isinstance(subject, Workload) else list(subject)
    if not named:
        raise InputError("no workload to work on")
    return [
        WeightedWorkload(workload, float(named.count(workload)))
        for workload in dict.fromkeys(named)
    ]


def is_model(subject: "Subject") -> bool:
    """Whether the subject is a model (a path or a loaded one) and not workloads."""
    return not isinstance(subject, Workload | list | tuple)


def is_compiled(subject: object) -> "TypeGuard[Executable | VaryingExecutable]":
    """Whether the subject is an executable in memory (asked without importing the compiler)."""
    return hasattr(subject, "recipe")


def is_artifact(subject: "Subject") -> bool:
    """Whether the subject is a compiled model: the path of one, or in memory."""
    if isinstance(subject, str | Path):
        return str(subject).endswith(_ARTIFACT_SUFFIX)
    return is_compiled(subject)


def executable_words(subject: "Subject") -> str:
    """The file of an artifact; of an executable in memory, the one it might be saved as here."""
    return f"{subject.name}{_ARTIFACT_SUFFIX}" if is_compiled(subject) else str(subject)


def file_word(path: str | Path) -> str:
    """How a command line names a file: one that looks like an option by its folder, too."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def subject_words(subject: "Subject") -> tuple[str, ...]:
    """How a command line names the subject; a model in memory by its graph's name."""
    if isinstance(subject, str | Path):
        return (file_word(subject),)
    if isinstance(subject, Workload):
        return ("--op", subject.key)
    if isinstance(subject, list | tuple):
        return tuple(word for workload in subject for word in ("--op", workload.key))
    from tilesmith.compiler.driver.front_end import FrontEndModel

    if is_compiled(subject):
        return (subject.name or "model",)
    named = subject if isinstance(subject, FrontEndModel) else subject.graph  # type: ignore[union-attr]
    return (named.name or "model",)


_MODELS: "WeakKeyDictionary[Compiled, Path]" = WeakKeyDictionary()


def remember(executable: "Compiled", model: "Model") -> None:
    """Keep in mind the file of an executable that was made of one."""
    if isinstance(model, str | Path):
        _MODELS[executable] = Path(model)


def model_of(executable: "Compiled") -> Path | None:
    """The file that `remember` was told."""
    return _MODELS.get(executable)
