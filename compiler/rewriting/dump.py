"""Dumps: the graph after each pass that changes it, as text, in files of a folder.

    00-import.txt  02-fold-constants.txt  04-canonicalise.txt ...

Numbers count passes as they run, so that a gap is a pass that changed nothing. Invariants: a folder
holds the dumps of one compilation, those of an earlier one are removed; a file that is no dump is
never touched, it refuses the folder.
"""

import os
from pathlib import Path

from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.graph.graph_text import graph_text
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.files import unwritable, written

_MARK = "# tilesmith: graph after "
"""How every dump begins."""


class Dump:
    """An observer of passes that writes graphs into `folder`, made at the first pass.

    Raises:
        InputError: see `_check`; or a file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        _check(folder)
        self._folder = folder
        self._passes = 0
        self._text = ""

    def __call__(self, step: Pass, before: Graph, after: Graph) -> None:
        if not self._passes:
            self._clear()
            self._write(0, "import", before)
        self._passes += 1
        if after is not before:
            self._write(self._passes, step.name, after)

    def _clear(self) -> None:
        try:
            self._folder.mkdir(exist_ok=True)
            for path in self._folder.iterdir():
                path.unlink()
        except OSError as error:
            raise unwritable(self._folder, error) from error

    def _write(self, number: int, name: str, graph: Graph) -> None:
        text = graph_text(graph)
        if text == self._text:
            return
        self._text = text
        label = f"{number:02} {name}"
        with written(self._folder / f"{label.replace(' ', '-')}.txt") as stream:
            stream.write(f"{_MARK}{label}\n{text}\n".encode())


def _check(folder: Path) -> None:
    """Refuse a folder that cannot be made or written in, or that holds anything but dumps.

    Raises:
        InputError: see above.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"'{folder}' cannot be written in: it is no folder; name another")
        parent = folder if folder.exists() else folder.absolute().parent
        if not parent.is_dir():
            raise InputError(f"'{folder}' cannot be made: the folder around it does not exist")
        if not os.access(parent, os.W_OK):
            raise InputError(f"'{folder}' cannot be written in: the folder is read-only")
        for entry in sorted(folder.iterdir()) if folder.exists() else ():
            if not entry.is_file() or not _is_dump(entry):
                raise InputError(
                    f"'{folder}' holds '{entry.name}', which is of another kind; name an empty "
                    "folder"
                )
    except OSError as error:
        raise unwritable(folder, error) from error


def _is_dump(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(_MARK)) == _MARK.encode()
