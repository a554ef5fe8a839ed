"""A folder to send: the smallest model that shows a fault, inputs, command, what was found."""

import json
import platform
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from tilesmith.capabilities.fault_finding.bisecting import version_here
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.files import unwritable

if TYPE_CHECKING:
    from tilesmith.capabilities.fault_finding.bisecting import BisectReport
    from tilesmith.capabilities.fault_finding.bisection.reduction import Small


def command_of(report: "BisectReport", folder: Path | None = None) -> str:
    """The command that shows the fault, run in the folder (or from anywhere, with it named)."""
    if report.small is None:
        return ""
    words = ["tilesmith", "bisect", "model.onnx", *report.options]
    for number, name in enumerate(report.small.inputs):
        words += ["--input", f"{name}=input_{number}.npy"]
    line = " ".join(map(shlex.quote, words))
    return line if folder is None else f"cd {shlex.quote(str(folder))} && {line}"


def check_folder(folder: Path) -> None:
    """Raise `InputError` unless a folder is empty or can be made."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"'{folder}' is there already and not empty; name another folder")
    except OSError as error:
        raise unwritable(folder, error) from error


def write_folder(report: "BisectReport", folder: Path) -> None:
    """Write model, inputs, expected outputs, command and finding.

    Raises:
        InputError: the folder is there already, or cannot be written.
    """
    assert report.small is not None and report.finding is not None
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(report.small.proto, str(folder / "model.onnx"))
        for number, value in enumerate(report.small.inputs.values()):
            np.save(folder / f"input_{number}.npy", value)
        for number, value in enumerate(report.small.wanted.values()):
            np.save(folder / f"expected_{number}.npy", value)
        for name, text in report.attached.items():
            (folder / name).write_text(text)
        (folder / "finding.json").write_text(
            json.dumps(report.to_json(), indent=2, default=str) + "\n"
        )
        (folder / "README.txt").write_text(readme(report))
    except OSError as error:
        raise unwritable(folder, error) from error


def _error(report: "BisectReport") -> str:
    return f"largest relative error of an output {report.error:.3g}, against {report.reference}"


def _weights(small: "Small") -> str:
    if not small.seeded:
        return "weights in it"
    names = ", ".join(small.seeded[:4]) + (" and others" if len(small.seeded) > 4 else "")
    return f"weights in it; {names}: computed by it, with numbers of the same size"


def readme(report: "BisectReport") -> str:
    """What the folder is, for whoever gets it."""
    assert report.small is not None and report.finding is not None
    small = report.small
    ends = [f"  input_{n}.npy     {name}" for n, name in enumerate(small.inputs)]
    ends += [
        f"  expected_{n}.npy  {name}, by {report.reference}" for n, name in enumerate(small.wanted)
    ]
    ends += [f"  {name}  the target" for name in report.attached]
    return "\n".join(
        [
            f"A model that tilesmith {version_here()} compiles wrongly: {len(small.nodes)} "
            f"of the {report.whole_nodes} nodes of '{report.model}'.",
            "",
            f"at fault: {report.finding.part} '{report.finding.name}'",
            report.finding.sentence,
            "",
            f"the whole model: {report.failure or _error(report)}",
            *report.notes,
            "",
            "Run in this folder:",
            "",
            f"  {command_of(report)}",
            "",
            f"  model.onnx        the model, {_weights(small)}",
            *ends,
            "  finding.json      what was found, for programs",
            "",
            f"machine: {platform.platform()}, {platform.processor() or platform.machine()}, Python "
            f"{platform.python_version()}",
            "",
        ]
    )
