"""How shells ask for words and take them: click's protocols, with what they leave out.

    --target=tr        a value behind `=` is completed, too, whatever the shell takes for a word
    my model.onnx      bash gets words with blanks escaped, unless a quote is open
    dtype=             no blank follows what is half of a word
    bf16, or fp16      fish shows descriptions to their end, commas or not
    a locked database  offers nothing, instead of a traceback in the middle of a prompt

Words themselves are `tilesmith.cli.completion`'s. Importing this module makes click use it.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

OPEN = "open"
"""The type of an item that is not a whole word yet; beside click's plain, file and dir."""

_SPECIAL = re.compile(r"([^\w@%+=:,./~-])")
_ENDS_OPEN = ("=", "/")


class _Whole(ShellComplete):
    """What all shells have in common."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        with suppress(Exception):
            name, equals, value = incomplete.partition("=")
            if not (equals and name.startswith("--")):
                items = [_ended(item) for item in super().get_completions(args, incomplete)]
                return [i for i in items if i.type != OPEN or i.value != incomplete]
            items = super().get_completions([*args, name], value)
            files = any(item.type in ("file", "dir") for item in items)
            words = beginning(value) if files else [item.value for item in items]
            return [_ended(CompletionItem(f"{name}={word}")) for word in words]
        return []


def _ended(item: CompletionItem[str]) -> CompletionItem[str]:
    if item.type == "plain" and item.value.endswith(_ENDS_OPEN):
        return CompletionItem(item.value, OPEN, item.help)
    return item


def beginning(start: str, ends: tuple[str, ...] = ("",)) -> list[str]:
    """Files (of certain endings) and folders whose paths begin so; folders end in a slash."""
    head = start.rpartition("/")[0] + "/" if "/" in start else ""
    folder = Path(head or ".").expanduser()
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    names = [
        f"{head}{one.name}{'/' * one.is_dir()}"
        for one in entries
        if one.is_dir() or one.name.endswith(ends)
    ]
    hidden = start.removeprefix(head).startswith(".")
    return [n for n in names if n.startswith(start) and (hidden or n[len(head)] != ".")]


class Bash(_Whole, BashComplete):
    """bash breaks words at `=` and `:`; it takes what stands behind the last break, escaped."""

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion kind value
    response=$(COMP_TEXT="${COMP_LINE:0:COMP_POINT}" COMP_LAST="${COMP_WORDS[COMP_CWORD]}" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
    COMPREPLY=()
    for completion in $response; do
        IFS=',' read -r kind value <<< "$completion"
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            open) compopt -o nospace; COMPREPLY+=("$value") ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        words = split_arg_string(os.environ["COMP_TEXT"])[1:]
        last = os.environ["COMP_LAST"]
        return (words, "") if not last else (words[:-1], words[-1] if words else "")

    def complete(self) -> str:
        args, incomplete = self.get_completion_args()
        last = os.environ["COMP_LAST"]
        present = "" if last in ("=", ":") else "".join(split_arg_string(last))
        before = len(incomplete) - len(present)
        quoted = last[:1] in ("'", '"')
        lines = []
        for item in self.get_completions(args, incomplete):
            word = item.value[before:]
            word = word if quoted else _SPECIAL.sub(r"\\\1", word)
            lines.append(self.format_completion(CompletionItem(word, item.type)))
        return "\n".join(lines)


class Zsh(_Whole, ZshComplete):
    """zsh escapes by itself; it is told where no blank may follow."""

    source_template = (
        ZshComplete.source_template.replace(
            "    local -a response\n", "    local -a response half\n"
        )
        .replace(
            '        elif [[ "$type" == "dir" ]]; then',
            '        elif [[ "$type" == "open" ]]; then\n            half+=("$key")\n'
            '        elif [[ "$type" == "dir" ]]; then',
        )
        .replace(
            '    if [ -n "$completions" ]; then',
            '    if [ -n "$half" ]; then\n'
            "        compadd -U -S '' -V unsorted -a half\n    fi\n\n"
            '    if [ -n "$completions" ]; then',
        )
        .replace("=zsh_complete %(prog_name)s)", "=zsh_complete %(prog_name)s 2>/dev/null)")
    )


class Fish(_Whole, FishComplete):
    """fish adds no blank behind `=` and `/`; descriptions may hold commas."""

    source_template = (
        FishComplete.source_template.replace('string split "," ', 'string split -m 1 "," ')
        .replace('= "plain"', '= "plain" -o $metadata[1] = "open"')
        .replace(
            "COMP_CWORD=(commandline -t) %(prog_name)s)",
            "COMP_CWORD=(commandline -t) %(prog_name)s 2>/dev/null)",
        )
    )


for shell in (Bash, Zsh, Fish):
    add_completion_class(shell)
