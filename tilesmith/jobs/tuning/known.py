"""Which pretrained model a tuning job starts from: one of the database's, where it ranks better.

Whatever is wrong with a model in the database, the job goes on without it and says so: a shared
database is input like any other, and no model is worth a job.
"""

from typing import Any

from tilesmith.records.database import Database
from tilesmith.records.learning import cost_models
from tilesmith.records.learning.cost_models import StoredModel
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.support.errors import DatabaseError, InputError
from tilesmith.tuner.learning.learning import Known
from tilesmith.tuner.pretrained.pretrained import Pretrained

WITHOUT = "the analytical latency, where there is one"
"""What scores start from without a model of the database."""


def starting_point(
    database: Database, saved: Any, target: Target, measured_by: MeasuredBy
) -> tuple[Known, str]:
    """What a job starts from, and a sentence about it.

    Args:
        saved: state of the job that is resumed (it goes on with what it began with), else None.

    Raises:
        InputError: a job cannot be resumed because its model cannot be used any more.
    """
    if saved is None:
        return chosen(database, target, measured_by)
    name = str(saved.get("models", {}).get(measured_by, ""))
    if not name.isdigit():
        return Known(), WITHOUT
    try:
        known = Known(model_of(database, cost_models.stored(database, int(name))), name)
    except (DatabaseError, InputError) as error:
        raise InputError(
            f"the job began with cost model {name}, which cannot be used any more ({error}); start "
            "it anew, without --resume"
        ) from error
    return known, f"cost model {name} of the database, as when it began"


def chosen(database: Database, target: Target, measured_by: MeasuredBy) -> tuple[Known, str]:
    """The active model that ranks best on this machine, if one is better than what there is
    without, and a sentence about it.
    """
    offered = cost_models.listed(
        database, family=target.family, measured_by=measured_by, active=True
    )
    offered = [model for model in offered if model.target in ("", target.identity)]
    refusals = []
    for model in sorted(offered, key=lambda m: (-_accuracy(m, target), not m.target, -m.id)):
        scores = model.scores.get(target.identity)
        if not isinstance(scores, dict):
            refusals.append(f"{model.id} was tested on too few workloads of this machine")
        elif scores.get("better") is not True:
            refusals.append(f"{model.id} ranks this machine's workloads no better")
        else:
            try:
                known = Known(model_of(database, model), f"{model.id}")
            except (DatabaseError, InputError) as error:
                refusals.append(str(error))
                continue
            origin = f"{model.recipe}, made from {model.trials} trials"
            return known, f"cost model {model.id} of the database ({origin})"
    return Known(), f"{WITHOUT}; not cost model {'; '.join(refusals)}" if refusals else WITHOUT


def model_of(database: Database, stored: StoredModel) -> Pretrained:
    """A model of the database, checked.

    Raises:
        InputError: it is damaged, or was made for other versions.
        DatabaseError: its text is too long to be one.
    """
    name = f"cost model {stored.id} of database {database.name}"
    text = cost_models.text_of(database, stored.id)
    model, stale = Pretrained.parsed(text, name, stored.measured_by)
    if model is None:
        raise InputError(f"{stored.id} was made for another version of: {', '.join(stale)}")
    return model


def _accuracy(model: StoredModel, target: Target) -> float:
    try:
        return float(model.scores[target.identity]["model"]["accuracy"])
    except (KeyError, TypeError, ValueError):
        return 0.0
