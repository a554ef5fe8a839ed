"""Public configurations of models: `config.json` of transformers and diffusers, field by field.

Fields keep the names and the defaults their configuration classes have. Those that say how large a
model is must be there: a forgotten `hidden_size` shall not become somebody else's.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.support.files import ending

_DEEPEST, _LARGEST = 10_000, 10**9
"""The most layers, and the most of anything else: beyond these a file is damaged."""

_DEPTHS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")


@dataclass(frozen=True)
class Configuration:
    """One configuration: where it is from, what family it names, its fields.

    Errors are `ModelError`s that name file and field.
    """

    source: str
    family: str
    fields: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def value(self, name: str, *others: str) -> Any:
        """A field that must be there, under its name or an older one."""
        for known in (name, *others):
            if known in self:
                return self.fields[known]
        raise ModelError(
            f"'{self.source}' lacks the field '{name}', which the architecture '{self.family}' "
            "needs"
        )

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`; without a default it must be there."""
        value = default if default is not None and name not in self else self.value(name)
        most = _DEEPEST if name in _DEPTHS else _LARGEST
        if not _is_whole(value, least, most):
            raise ModelError(
                f"'{self.source}': {name} = {_short(value)}; a whole number from {least} to "
                f"{most:,} is expected"
            )
        return int(value)

    def listed(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers, such as those of layers; None where it is absent or empty."""
        value = self.fields.get(name) or None
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(_is_whole(n, 0, _LARGEST) for n in value):
            raise ModelError(
                f"'{self.source}': {name} = {_short(value)}; a list of whole numbers is expected"
            )
        return tuple(value)

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelError(
                f"'{self.source}': {name} = {_short(value)}; true or false is expected"
            )
        return value

    def inner(self, name: str) -> "Configuration":
        """Fields that stand in a group of their own."""
        group = self.fields.get(name) or {}
        if not isinstance(group, Mapping):
            raise ModelError(
                f"'{self.source}': {name} = {_short(group)}; a group of fields is expected"
            )
        return Configuration(self.source, self.family, group)

    def integers(self, name: str, length: int, default: Any = None) -> tuple[int, ...]:
        """As many whole numbers as there are blocks; one number stands for all."""
        value = default if default is not None and name not in self else self.value(name)
        values = tuple(value) if isinstance(value, list | tuple) else (value,) * length
        if len(values) != length or not all(_is_whole(one, 1, _LARGEST) for one in values):
            raise ModelError(
                f"'{self.source}': {name} = {_short(value)}; {length} whole numbers of at "
                "least 1 are expected"
            )
        return values

    def texts(self, name: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A list of names."""
        value = list(default) if default is not None and name not in self else self.value(name)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ModelError(
                f"'{self.source}': {name} = {_short(value)}; a list of names is expected"
            )
        return tuple(value)

    def divided(self, name: str, by: str) -> int:
        """One field over another, which must divide it."""
        whole, parts = self.integer(name), self.integer(by)
        if whole % parts:
            raise ModelError(
                f"'{self.source}': {name} = {whole} is not divisible by {by} = {parts}"
            )
        return whole // parts


def _is_whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _short(value: Any) -> str:
    """A value as it is written, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ModelError: it cannot be read, or is no JSON object.
    """
    try:
        fields = json.loads(ending(path).read_text())
    except OSError as error:
        raise ModelError(f"'{path}' cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"'{path}' is no valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ModelError(f"'{path}' holds no JSON object; a model's config.json is expected")
    return fields
