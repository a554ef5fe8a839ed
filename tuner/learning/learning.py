"""What a search learns from, and what it knows before: chosen once for each way of measuring."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.results.model_evaluator import ModelEvaluator
from tilesmith.tuner.measurement.runner import Runner
from tilesmith.tuner.pretrained.pretrained import Pretrained
from tilesmith.tuner.tasks.feature_source import FeatureSource, Judge, JudgedFeatures, KnobFeatures


@dataclass(frozen=True)
class Known:
    """A pretrained model to start from, and by which name a resumed job finds it again.

    Attributes:
        model: None: there is none.
        name: number in the database, "" for none.
    """

    model: Pretrained | None = None
    name: str = ""


@dataclass(frozen=True)
class Judging:
    """What tells how good a schedule is before, or beside, measuring it alone.

    Attributes:
        judge: program features and analytical latencies; None: the cost model sees bare knobs.
        is_label: whether the judge's latency is what the simulator measures; it is hidden from the
            model that learns it, and shown where the simulator measures otherwise.
        evaluator: judges the top candidates inside the whole model; its choices are reported.
        known: models of the machine's own measurements, by label.
    """

    judge: Judge | None = None
    is_label: bool = True
    evaluator: ModelEvaluator | None = None
    known: Mapping[MeasuredBy, Known] = field(default_factory=dict)


UNJUDGED = Judging()


@dataclass(frozen=True)
class Learning:
    """What a search learns from, and by which model.

    Attributes:
        source: features for the cost model.
        model: name of the cost model; "" trains none: the analytical latency is the score.
        known: what it starts from.
    """

    source: FeatureSource
    model: str
    known: Known = Known()


def learning_of(
    runner: Runner, screening: bool, judging: Judging, target: Target, asked: str
) -> Learning:
    """What one runner's search learns from, by the cost model `asked` for ("": the usual).

    When screening, the judge's latency is the score and nothing is learned.
    """
    if judging.judge is None:
        return Learning(KnobFeatures(), asked or "blend")
    simulated = runner.measured_by == "simulator"
    shown = screening or not (judging.is_label and simulated)
    features = JudgedFeatures(judging.judge, target, shown)
    if screening:
        return Learning(features, "")
    known = judging.known.get(runner.measured_by, Known())
    return Learning(features, asked or "blend", known)
