"""The request for a plan, by names, and how it is answered: as a point, a sweep, or a load served.

The command `plan` and `tilesmith.plan` say the same: degrees, precisions and lengths each have one
value or several, an empty tuple means all, None what usually holds. Messages name options.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from tilesmith.jobs.keywords import takes
from tilesmith.search_space.support.errors import InputError

if TYPE_CHECKING:
    from tilesmith.capabilities.planning.architecture import Architecture
    from tilesmith.capabilities.planning.deployment import Deployment, DeploymentLoad
    from tilesmith.capabilities.planning.estimates.estimate import Estimate
    from tilesmith.capabilities.planning.serving.job import Outputs, Planned, ServingLoad
    from tilesmith.capabilities.planning.sweeps.grid import Grid
    from tilesmith.search_space.meshes.mesh import Mesh

_FASTEST = 10**6
"""Requests a second of a load."""
_BATCHES = (1, 2, 4, 8, 16, 32, 64)
"""Of a sweep that names none."""
_AT_ONCE = 256
"""Sequences at once that a load may run, unless --batch says."""
_BOUNDS = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")
SPLIT = "disaggregated"
"""The policy of prompts and answers on chips of their own."""
_SHOWN = {"input": "input-tokens", "output": "output-tokens"}
"""Options by the names they are handed on by."""
_NAMES = {
    "tp": "tensor", "pp": "pipeline", "ep": "expert", "dp": "data", "input_tokens": "input",
    "output_tokens": "output", "arrivals": "trace",
}  # fmt: skip
"""By keyword, the names that jobs know."""
_SEVERAL = ("tensor", "pipeline", "expert", "data", "batch", "input", "output", "weights", "cache")
_UNASKED: Mapping[str, Any] = {
    **dict.fromkeys((*_SEVERAL, *_BOUNDS, "max_sequence", "max_chips", "prices")),
    "requests_per_second": None, "trace": None, "input_spread": 0.0, "output_spread": 0.0,
    "policies": ("prefill_first", "chunked"), "step_tokens": 2048, "cheapest": False,
    "requests": 2000, "seed": 0, "csv_file": None, "page": None,
}  # fmt: skip

Several = int | str | Sequence[int] | Sequence[str]
"""One value or several; of degrees () means all that are possible."""


class AskedOfPlan(TypedDict, total=False):
    """Keywords of `tilesmith.plan`; the command's options have the same names."""

    tp: Several
    pp: Several
    ep: Several
    dp: Several
    batch: Several
    input_tokens: Several
    output_tokens: Several
    max_sequence: int
    weights: Several
    cache: Several
    settings: Mapping[str, Any]
    requests_per_second: float
    arrivals: str | Path
    input_spread: float
    output_spread: float
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    policies: Sequence[str]
    step_tokens: int
    max_chips: int
    cheapest: bool
    requests: int
    seed: int
    prices: str | Path


@takes(AskedOfPlan)
def plan(
    model: str | Path, mesh: str | Sequence[str], **asked: Unpack[AskedOfPlan]
) -> "Estimate | Planned":
    """Estimate what serving a model on a mesh of chips costs.

        ts.plan("config.json", "trn1.32xlarge", tp=32, input_tokens=1024).ttft_ms
        ts.plan("config.json", "trn1.32xlarge", tp=(8, 32), batch=(1, 4)).to_json()

    Args:
        model: the public configuration of a model, the folder it lies in, or an ONNX file.
        mesh: by name, or a .toml file; several are compared.
        asked: `tp`, `pp`, `ep`, `dp`, `batch`, `input_tokens`, `output_tokens`, `max_sequence`,
            `weights`, `cache`, `settings`; of a load `requests_per_second` or `arrivals` and what
            bounds it, as the command `plan` has them.

    Returns:
        one deployment's `Estimate`, where all of `tp`, `pp`, ... have one value; else what a sweep
        or a load comes to.

    Raises:
        InputError: what is asked for does not go together, or cannot be (and its kinds).
    """
    from tilesmith.capabilities.planning.estimates.estimate import estimate
    from tilesmith.capabilities.planning.serving.job import Outputs

    given: dict[str, Any] = {_NAMES.get(name, name): value for name, value in asked.items()}
    settings = given.pop("settings", {})
    for name in _SEVERAL:
        if given.get(name) is not None:
            one = isinstance(given[name], int | str)
            given[name] = (given[name],) if one else tuple(given[name])
    if given.get("trace") is not None:
        given["trace"] = Path(given["trace"])
    names = (mesh,) if isinstance(mesh, str) else tuple(mesh)
    said = {**_UNASKED, **given}
    architecture, meshes = read(model, names, said, settings)
    if is_point(said, len(meshes)):
        return estimate(architecture, deployment_of(meshes[0], said), load_of(said))
    prices = None if said["prices"] is None else Path(said["prices"])
    return planned(architecture, meshes, said, Outputs(None, None, prices, ""))


def read(
    model: str | Path,
    meshes: Sequence[str],
    asked: dict[str, Any],
    settings: Mapping[str, Any],
) -> "tuple[Architecture, list[Mesh]]":
    """Read the model and the machines. Where no precision of weights is given, the model's is set.

    Raises:
        InputError: one of them is wrong, or what is asked contradicts itself.
    """
    from tilesmith.capabilities.planning.estimates.constants import with_serving_settings
    from tilesmith.capabilities.planning.reading.naming import read_architecture
    from tilesmith.capabilities.planning.reading.quantisation import stored_precision
    from tilesmith.search_space.meshes.mesh import load_mesh

    check(asked)
    architecture = read_architecture(model)
    asked["weights"] = asked["weights"] or (stored_precision(architecture),)
    return architecture, [
        with_serving_settings(load_mesh(name), settings) for name in dict.fromkeys(meshes)
    ]


def deployment_of(mesh: "Mesh", asked: Mapping[str, Any]) -> "Deployment":
    """The deployment of a point."""
    from tilesmith.capabilities.planning.deployment import Deployment

    names = ("tensor", "pipeline", "expert", "data", "weights", "cache")
    return Deployment(mesh, **{name: asked[name][0] for name in names if asked[name]})


def load_of(asked: Mapping[str, Any]) -> "DeploymentLoad":
    """The load of a point."""
    from tilesmith.capabilities.planning.deployment import DeploymentLoad

    names = {"batch": "batch", "input": "input_tokens", "output": "output_tokens"}
    given = {to: asked[name][0] for name, to in names.items() if asked[name]}
    return DeploymentLoad(**given, max_sequence=asked["max_sequence"] or 0)


def is_point(asked: Mapping[str, Any], meshes: int) -> bool:
    """Whether the request is one deployment under one load, with no file to write and no price."""
    several = ("pipeline", "expert", "data", "weights", "cache", "batch", "input", "output")
    single = meshes == 1 and bool(asked["tensor"]) and len(asked["tensor"]) == 1
    single &= all(asked[name] is None or len(asked[name]) == 1 for name in several)
    more = any(asked[name] for name in ("csv_file", "page", "prices"))
    return single and not has_load(asked) and not more


def has_load(asked: Mapping[str, Any]) -> bool:
    """Whether the request has a load over time."""
    return asked["requests_per_second"] is not None or asked["trace"] is not None


def planned(
    architecture: "Architecture",
    meshes: "Sequence[Mesh]",
    asked: Mapping[str, Any],
    outputs: "Outputs",
) -> "Planned":
    """Answer a request that is more than one point.

    Raises:
        InputError: what is asked for does not go together, or cannot be.
    """
    from tilesmith.capabilities.planning.serving.job import plan_load, plan_sweep

    grid = _grid(meshes, asked)
    if has_load(asked):
        return plan_load(architecture, grid, _serving_load(asked), outputs)
    return plan_sweep(architecture, grid, outputs)


def check(asked: Mapping[str, Any]) -> None:
    """Refuse a request that contradicts itself.

    Raises:
        InputError: options that contradict each other, or bound a load where there is none.
    """
    if not has_load(asked):
        for name in (*_BOUNDS, "max_chips"):
            if asked[name] is not None:
                raise InputError(
                    f"--{name.replace('_', '-')} bounds a load; give --requests-per-second or "
                    "--arrivals too"
                )
        if asked["cheapest"]:
            raise InputError("--cheapest is of a load; give --requests-per-second or --arrivals")
        return
    if asked["requests_per_second"] is not None and asked["trace"] is not None:
        raise InputError("--requests-per-second and --arrivals are two loads; give one of them")
    rate = asked["requests_per_second"]
    if rate is not None and not 0 < rate <= _FASTEST:
        raise InputError(
            f"--requests-per-second is {rate:g}; above 0 and at most {_FASTEST:,} are allowed"
        )
    for name in _BOUNDS:
        if asked[name] == 0:
            raise InputError(f"--{name.replace('_', '-')} is 0 ms, which nothing keeps; give more")
    for name in ("input", "output", "batch"):
        if asked[name] is not None and len(asked[name]) > 1:
            shown = _SHOWN.get(name, name)
            raise InputError(f"--{shown} has several values; a load has one of them")
    if asked["data"] not in (None, (1,)):
        raise InputError("--dp is what a load's answer says; leave it out")
    if asked["trace"] is not None:
        for name in ("input", "output"):
            if asked[name] is not None or asked[f"{name}_spread"]:
                said = f"--{_SHOWN[name]} and its spread are for --arrivals to say; leave them out"
                raise InputError(said)


def _grid(meshes: "Sequence[Mesh]", asked: Mapping[str, Any]) -> "Grid":
    """The grid: where the tensor degree is open, so are those that are not given."""
    from tilesmith.capabilities.planning.sweeps.grid import ALL, Grid

    tensor = asked["tensor"] or ALL
    rest = (1,) if tensor else ALL
    pipeline, expert = (rest if asked[n] is None else asked[n] for n in ("pipeline", "expert"))
    batches = asked["batch"] or ((1,) if has_load(asked) else _BATCHES)
    return Grid(
        tuple(meshes), tensor, pipeline, expert,
        data=(1,) if asked["data"] is None else asked["data"],
        weights=asked["weights"] or ("bf16",), caches=asked["cache"] or ("bf16",), batches=batches,
        inputs=asked["input"] or (128,), outputs=asked["output"] or (128,),
        max_sequence=asked["max_sequence"] or 0,
    )  # fmt: skip


def _serving_load(asked: Mapping[str, Any]) -> "ServingLoad":
    from tilesmith.capabilities.planning.serving.job import ServingLoad
    from tilesmith.capabilities.planning.sizing.answer import ReplicaOptions
    from tilesmith.capabilities.planning.sizing.demand import Bounds

    options = ReplicaOptions(
        policies=tuple(name for name in asked["policies"] if name != SPLIT),
        split=SPLIT in asked["policies"],
        batch=asked["batch"][0] if asked["batch"] else _AT_ONCE,
        budget=asked["step_tokens"],
        chips=asked["max_chips"] or 0,
        by_cost=asked["cheapest"],
    )
    names = ("requests_per_second", "trace", "input_spread", "output_spread", "requests", "seed")
    return ServingLoad(
        **{name: asked[name] for name in names},
        bounds=Bounds(**{name: asked[name] for name in _BOUNDS}),
        options=options,
    )
