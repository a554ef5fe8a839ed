"""What an instance costs an hour: a data file with sources and dates, which a user may override.

Invariant: a price is a positive number of dollars an hour for a whole instance; a machine that
nobody sells has none, and what depends on it is left out rather than guessed.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.files import ending

_MOST = 1_000_000


@dataclass(frozen=True)
class Price:
    """Dollars an hour for one instance, and who says so."""

    usd_per_hour: float
    source: str = ""
    date: str = ""
    trust: str = "?"


def load_prices(path: Path | None = None) -> Mapping[str, Price]:
    """Prices by the names of meshes; those of `path` come before the ones shipped.

    Raises:
        InputError: the file cannot be read, or an entry is not a price.
    """
    shipped = files(__package__).joinpath("prices.toml").read_text(encoding="utf-8")
    prices = dict(_prices(tomllib.loads(shipped), "prices.toml"))
    if path is not None:
        try:
            text = tomllib.loads(ending(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or error
            raise InputError(f"prices '{path}' cannot be read: {why}") from error
        prices |= _prices(text, str(path))
    return prices


def usd_per_million(usd_per_hour: float, tokens_per_s: float) -> float:
    """Dollars for a million tokens at a rate."""
    return usd_per_hour / (tokens_per_s * 3600) * 1e6


def _prices(tables: Mapping[str, Any], file: str) -> Mapping[str, Price]:
    """Entries `[trn1."32xlarge"]` and `["trn1.32xlarge"]` alike, by the name with its dots."""
    prices: dict[str, Price] = {}
    for name, value in tables.items():
        if not isinstance(value, Mapping):
            raise InputError(
                f"{file}: '{name}' is not a table; an entry is [\"{name}\"] with usd_per_hour below"
            )
        if "usd_per_hour" in value:
            prices[name] = _price(value, name, file)
        else:
            inner = _prices(value, file)
            prices |= {f"{name}.{rest}": price for rest, price in inner.items()}
    return prices


def _price(entry: Mapping[str, Any], name: str, file: str) -> Price:
    unknown = set(entry) - set(Price.__dataclass_fields__)
    if unknown:
        raise InputError(
            f"{file}: '{name}' has the unknown key '{min(unknown)}'; keys are "
            f"{', '.join(Price.__dataclass_fields__)}"
        )
    number = entry["usd_per_hour"]
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= _MOST:
        raise InputError(
            f"{file}: '{name}' has usd_per_hour = {number!r}; it is dollars an hour, above 0 "
            f"and at most {_MOST:,}"
        )
    texts = {key: str(value) for key, value in entry.items() if key != "usd_per_hour"}
    return Price(float(number), **texts)
