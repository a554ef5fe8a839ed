"""Pretrained cost models in the database: versioned beside the trials they were made from.

A model is text to this package: what it means, and whether it can be trusted, is for the tuner to
say (`tuner.pretrained`). Every training adds a row; of a family, target and way of measuring, one
at most is active, and only that is offered to jobs. Nothing is changed but `active`, so that what a
finished job used can be looked up.
"""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, func, insert, select, update

from tilesmith.records.jobs.clock import UtcNow
from tilesmith.records.opened.store import Store
from tilesmith.records.schema.models import COST_MODELS, TOOLCHAINS
from tilesmith.records.trials.reading import TOOLCHAIN_COLUMNS, Rows, to_toolchain
from tilesmith.records.trials.toolchain import Toolchain
from tilesmith.records.trials.writing import Writer, storable
from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.support.errors import DatabaseError

MOST_BYTES = 16_000_000
"""Length of any text of a row that is read: a shared database is input like any other."""


@dataclass(frozen=True)
class StoredModel:
    """A row of `cost_models`, without the model's text.

    Attributes:
        target: identity, "" for the whole family.
        features: version of the features it was trained on.
        recipe: how it was fitted, for people.
        trials, workloads: how many trials, of which workloads, it was made from.
        scores: what held-out workloads say of it, by target identity; JSON values.
    """

    id: int
    family: str
    target: str
    measured_by: MeasuredBy
    features: str
    recipe: str
    trials: int
    workloads: tuple[str, ...]
    scores: Mapping[str, Any]
    active: bool
    host: str
    created_at: datetime
    toolchain: Toolchain

    @property
    def subject(self) -> str:
        """What it is for, for people."""
        return self.target or f"every {self.family}"


@dataclass(frozen=True)
class NewModel:
    """A model to be kept; attributes as `StoredModel`'s, and its text."""

    family: str
    target: str
    measured_by: MeasuredBy
    features: str
    recipe: str
    trials: int
    workloads: Sequence[str]
    scores: Mapping[str, Any]
    model: str


def add(store: Store, new: NewModel) -> int:
    """Keep a model, made by this installation, inactive; its number."""
    with store.writing() as connection:
        values = {
            **vars(new),
            "toolchain_id": Writer(connection).toolchain_id(store.toolchain),
            "workloads": storable(json.dumps(sorted(set(new.workloads)))),
            "scores": storable(json.dumps(new.scores)),
            "active": False,
            "host": platform.node(),
            "created_at": UtcNow(),
        }
        key = connection.execute(insert(COST_MODELS).values(**values)).inserted_primary_key
    assert key is not None
    return int(key[0])


def activate(store: Store, number: int, active: bool = True) -> StoredModel:
    """Offer a model to jobs instead of the others for the same, or (`active` false) none.

    Raises:
        DatabaseError: there is no such model.
    """
    chosen = stored(store, number)
    with store.writing() as connection:
        alike = (
            (COST_MODELS.c.family == chosen.family)
            & (COST_MODELS.c.target == chosen.target)
            & (COST_MODELS.c.measured_by == chosen.measured_by)
        )
        connection.execute(update(COST_MODELS).where(alike).values(active=False))
        if active:
            mine = update(COST_MODELS).where(COST_MODELS.c.id == number)
            connection.execute(mine.values(active=True))
    return stored(store, number)


def listed(
    store: Store,
    *,
    family: str | None = None,
    measured_by: MeasuredBy | None = None,
    active: bool | None = None,
) -> list[StoredModel]:
    """Models, the newest first; a damaged row is left out."""
    query = _select()
    for column, value in (
        (COST_MODELS.c.family, family),
        (COST_MODELS.c.measured_by, measured_by),
        (COST_MODELS.c.active, active),
    ):
        query = query if value is None else query.where(column == value)
    with store.reading() as connection:
        rows = connection.execute(query.order_by(COST_MODELS.c.id.desc())).mappings().all()
    return [model for row in rows if (model := _to_model(row)) is not None]


def stored(store: Store, number: int) -> StoredModel:
    """One model by its number; `DatabaseError` if there is none, or its row is damaged."""
    with store.reading() as connection:
        query = _select().where(COST_MODELS.c.id == number)
        row = connection.execute(query).mappings().first()
    if row is None:
        raise DatabaseError(
            f"database '{store.name}' has no cost model {number}; 'tilesmith models list' names "
            "those there are"
        )
    model = _to_model(row)
    if model is None:
        raise DatabaseError(f"cost model {number} of database '{store.name}' is damaged")
    return model


def text_of(store: Store, number: int) -> str:
    """A model's text; `DatabaseError` if there is none, or it is too long to be one."""
    row = COST_MODELS.c.id == number
    with store.reading() as connection:
        query = select(func.length(COST_MODELS.c.model)).where(row)
        size = connection.execute(query).scalar()
        if size is None or size > MOST_BYTES:
            raise DatabaseError(
                f"database '{store.name}' has no cost model {number}"
                if size is None
                else f"cost model {number} of database '{store.name}' is damaged: its text has "
                f"{size:,} bytes, {MOST_BYTES:,} at most are read"
            )
        return str(connection.execute(select(COST_MODELS.c.model).where(row)).scalar_one())


def _select() -> Rows:
    """All of a row but the model's text; long texts are not fetched."""
    short = (func.length(COST_MODELS.c.workloads) <= MOST_BYTES) & (
        func.length(COST_MODELS.c.scores) <= MOST_BYTES
    )
    columns = (c for c in COST_MODELS.c if c.name not in ("model", "toolchain_id"))
    query = select(*columns, *TOOLCHAIN_COLUMNS).where(short)
    return query.join(TOOLCHAINS, TOOLCHAINS.c.id == COST_MODELS.c.toolchain_id)


def _to_model(row: RowMapping) -> StoredModel | None:
    """The value of a row; None where its texts are not what they should be."""
    try:
        workloads, scores = json.loads(row["workloads"]), json.loads(row["scores"])
    except (ValueError, RecursionError):
        return None
    texts = isinstance(workloads, list) and all(isinstance(key, str) for key in workloads)
    if not texts or not isinstance(scores, dict) or row["measured_by"] not in _LABELS:
        return None
    plain = {name: row[name] for name in StoredModel.__dataclass_fields__ if name in row}
    values = {"workloads": tuple(workloads), "scores": scores, "toolchain": to_toolchain(row)}
    return StoredModel(**{**plain, **values, "active": bool(row["active"])})


_LABELS = ("hardware", "simulator")
