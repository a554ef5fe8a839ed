"""`tilesmith completion`: a script that teaches a shell Tilesmith's words, and the words.

What can stand in a place follows from its parameter's name, which is the same in every command
(`model`, `target`, `mesh`, `--op`, `database`, ...): a command that is added is completed, too.
Nothing here runs unless a shell asks.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from tilesmith.cli import shells
from tilesmith.cli.help import Explained
from tilesmith.search_space.hardware.target import HOST

VARIABLE = "_TILESMITH_COMPLETE"
"""The environment variable by which a shell asks."""

SHELLS = ("bash", "zsh", "fish")
_MODELS = (".onnx", ".mlir", ".tsm")
_DATABASES = (".db", ".sqlite", ".sqlite3")
_ARRAYS = (".npy", ".npz")


@click.command(cls=Explained)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes words of 'tilesmith' in SHELL.

    \b
    bash  eval "$(tilesmith completion bash)"  in ~/.bashrc
    zsh   eval "$(tilesmith completion zsh)"   in ~/.zshrc, after compinit
    fish  tilesmith completion fish | source   in ~/.config/fish/config.fish

    It completes commands, options and their values: models, targets, meshes, operators and their
    parameters, databases, workloads, search strategies and cost models.
    """
    root = click.get_current_context().find_root().command
    shell_class = get_completion_class(shell)
    assert shell_class is not None, shell
    click.echo(shell_class(root, {}, "tilesmith", VARIABLE).source())


Words = Callable[[click.Context, str], Iterable[str]]


class Completed(click.ParamType[Any]):
    """A parameter's type, with the words that a shell offers for it."""

    def __init__(self, inner: click.ParamType[Any], words: Words, files: bool) -> None:
        self.name = inner.name
        self._inner, self._words, self._files = inner, words, files

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._inner.convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        words: list[str] = []
        with suppress(Exception):  # a database that is away, a target that is none: no words
            words = [word for word in self._words(ctx, incomplete) if word.startswith(incomplete)]
        if self._files and (not words or _folders(incomplete)):
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(word) for word in words]


def completing(command: click.Command) -> click.Command:
    """The command, its parameters with the words that may stand for them."""
    if isinstance(command, click.Group):
        for one in command.commands.values():
            completing(one)
    for param in command.params:
        named = param.opts[0].lstrip("-") if param.param_type_name == "option" else param.name
        words = _BY_COMMAND.get((str(command.name), str(named))) or _WORDS.get(str(named))
        if words is not None and not isinstance(param.type, Completed | click.Choice):
            param.type = Completed(param.type, *words)
    return command


def _files(ends: tuple[str, ...]) -> Words:
    def words(ctx: click.Context, incomplete: str) -> Iterable[str]:
        return [name for name in shells.beginning(incomplete, ends) if not name.endswith("/")]

    return words


def _any_file(ctx: click.Context, incomplete: str) -> Iterable[str]:
    return ()  # the shell's own words


def _named_arrays(ctx: click.Context, incomplete: str) -> Iterable[str]:
    """Behind the name of an input, files of arrays."""
    name, equals, start = incomplete.partition("=")
    return [f"{name}={path}" for path in shells.beginning(start, _ARRAYS)] if equals else ()


def _folders(incomplete: str) -> bool:
    """Whether a folder may be on the way to what is meant: then the shell's own words are best."""
    start, _, rest = incomplete.rpartition("/")
    folder = Path(start or ("/" if incomplete.startswith("/") else ".")).expanduser()
    if not folder.is_dir() or not rest:
        return bool(start)
    return any(one.is_dir() and one.name.startswith(rest) for one in folder.iterdir())


def _targets(ctx: click.Context, incomplete: str) -> Iterable[str]:
    from tilesmith.search_space.hardware.target import target_names

    return [HOST, *target_names(), *_files((".toml",))(ctx, incomplete)]


def _meshes(ctx: click.Context, incomplete: str) -> Iterable[str]:
    from tilesmith.search_space.meshes.mesh import mesh_names

    return [*mesh_names(), *_files((".toml",))(ctx, incomplete)]


def _targets_and_meshes(ctx: click.Context, incomplete: str) -> Iterable[str]:
    return dict.fromkeys([*_targets(ctx, incomplete), *_meshes(ctx, incomplete)])


def _operators(ctx: click.Context, incomplete: str) -> Iterable[str]:
    """Operators; behind one the names of its parameters."""
    from tilesmith.search_space.workloads.workload import operators, signature_of

    head, blank, _ = incomplete.rpartition(" ")
    if not blank:
        return operators
    operator = head.split()[0]
    if operator not in operators:
        return ()
    names = [p.name for p in signature_of(operator).parameters]
    return [f"{head} {name}=" for name in (*names, "dtype", "const", "epilogue")]


def _workloads(ctx: click.Context, incomplete: str) -> Iterable[str]:
    """Workloads that the database knows."""
    from tilesmith.jobs.databases import BY_DEFAULT, located
    from tilesmith.records.database import Database

    location = located(ctx.params.get("database") or BY_DEFAULT).location
    if location is None:
        return ()
    with Database.open(location, create=False) as opened:
        return dict.fromkeys(best.record.workload_key for best in opened.overview(limit=200))


def _settings(ctx: click.Context, incomplete: str) -> Iterable[str]:
    """Numbers of the target that was named before."""
    from tilesmith.jobs.subjects.targets import resolve_target

    named = ctx.params.get("target") or ctx.params.get("name") or ctx.params.get("targets")
    named = named[0] if isinstance(named, tuple | list) and named else named
    return [f"{name}=" for name in resolve_target(named or HOST)]


def _registered(module: str, attribute: str) -> Words:
    def words(ctx: click.Context, incomplete: str) -> Iterable[str]:
        from importlib import import_module

        listed: Iterable[str] = getattr(import_module(module), attribute)
        return listed

    return words


_WORDS: dict[str, tuple[Words, bool]] = {
    "model": (_files(_MODELS), True),
    "models": (_files(_MODELS), True),
    "target": (_targets, True),
    "mesh": (_meshes, True),
    "op": (_operators, False),
    "operator": (_operators, False),
    "database": (_files(_DATABASES), True),
    "databases": (_files(_DATABASES), True),
    "sources": (_files(_DATABASES), True),
    "workload": (_workloads, False),
    "set": (_settings, False),
    "input": (_named_arrays, False),
    "calibration": (_any_file, True),
    "data": (_any_file, True),
    "space": (_any_file, True),
    "strategy": (_registered("tilesmith.tuner.tasks.strategy", "strategies"), False),
    "scheduler": (_registered("tilesmith.tuner.tasks.scheduler", "schedulers"), False),
    "cost-model": (_registered("tilesmith.tuner.surrogates.cost_model", "cost_models"), False),
}
"""By an option's first name or an argument's: its words, and whether it may be any file."""

_BY_COMMAND: dict[tuple[str, str], tuple[Words, bool]] = {
    ("targets", "name"): (_targets_and_meshes, True),
    ("operators", "name"): (_operators, False),
}
