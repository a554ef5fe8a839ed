"""What cannot be however much memory there is: experts dealt over more groups than there are
experts, more stages than layers, sequences longer than positions that were learnt.
"""

from tilesmith.capabilities.planning.architecture import Architecture, Experts, Lookup
from tilesmith.capabilities.planning.deployment import Deployment, DeploymentLoad
from tilesmith.search_space.support.errors import InputError


def check_possible(
    architecture: Architecture, deployment: Deployment, load: DeploymentLoad
) -> None:
    """Raise `InputError` if a model cannot be deployed or used so.

    Rotary positions have no end (engines serve models beyond what they were trained for); a table
    of positions has.
    """
    operators = [op for layer in architecture.layers for op in layer.operators]
    experts = min((op.count for op in operators if isinstance(op, Experts)), default=0)
    if deployment.expert > max(experts, 1):
        has = f"has {experts} experts" if experts else "has no experts"
        raise InputError(
            f"'{architecture.name}' {has}, which cannot be dealt over {deployment.expert} groups; "
            f"an expert degree of at most {max(experts, 1)} is allowed"
        )
    stages = stages_of(architecture)
    if deployment.pipeline > stages:
        raise InputError(
            f"'{architecture.name}' has no layers for {deployment.pipeline} stages; a pipeline "
            f"degree of at most {stages} is allowed"
        )
    longest = load.limit if architecture.kind == "decoder" else load.input_tokens
    if longest > (known := learnt_positions(architecture)) > 0:
        raise InputError(
            f"'{architecture.name}' has learnt {known} positions, and sequences of {longest} are "
            f"asked for; at most {known} are allowed"
        )


def stages_of(architecture: Architecture) -> int:
    """The most stages a pipeline can have: one for each of the layers that repeat."""
    return max(1, sum(layer.repeats for layer in architecture.layers if layer.repeats > 1))


def learnt_positions(architecture: Architecture) -> int:
    """Entries of the table of positions that a step's rows look up; 0: there is none."""
    tables = (
        operator
        for layer in architecture.layers
        if not layer.rows
        for operator in layer.operators
        if isinstance(operator, Lookup) and operator.name == "positions"
    )
    return architecture.positions if any(tables) else 0
