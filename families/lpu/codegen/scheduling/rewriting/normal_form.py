"""Chains as the scheduler wants them: every value that is written comes from a unit, results of VXM
from operations, and rows below zero from a tensor.
"""

from dataclasses import replace

from tilesmith.families.lpu.codegen.dataflow import (
    SUPERLANE,
    Chain,
    ChainValue,
    Compute,
    Gather,
    Operation,
    Product,
    Read,
    Send,
    Shuffle,
    Step,
    Transpose,
    VectorTensor,
    Write,
    inputs_of,
)

ZEROS = "zeros."
"""Tensors, one a type, that rows below zero are read from where nothing else is named."""


def zeros_of(chains: tuple[Chain, ...]) -> dict[str, VectorTensor]:
    """Rows of zeros that chains read."""
    reads = (step for chain in chains for step in chain.steps if isinstance(step, Read))
    names = sorted({step.frame for step in reads if step.frame.startswith(ZEROS)})
    return {
        name: VectorTensor(name, 1, name.removeprefix(ZEROS), copies=2, zeros=True)
        for name in names
    }


def normalised(chain: Chain, types: dict[ChainValue, str]) -> Chain:
    """Rows that are only copied go through VXM, and so does an operand that it gives back."""
    steps: list[Step] = []
    moved: dict[ChainValue, ChainValue] = {}
    for number, step in enumerate(chain.steps):
        step = renamed(step, moved)
        if isinstance(step, Write) and isinstance(steps[step.value.step], Read | Gather):
            copy = Operation("copy", (0,), types[step_value(chain, number)])
            steps.append(Compute((step.value,), (copy,), (1,)))
            step = Write(ChainValue(len(steps) - 1), step.rows)
        elif isinstance(step, Read) and not step.frame and step.rows.numbers.min() < 0:
            step = replace(step, frame=ZEROS + types[ChainValue(number)])
        elif isinstance(step, Compute):
            step = _given_back(step, [types[value] for value in inputs_of(chain.steps[number])])
        steps.append(step)
        if len(steps) - 1 != number:
            moved |= {
                ChainValue(number, o): ChainValue(len(steps) - 1, o) for o in range(SUPERLANE)
            }
    return replace(chain, steps=tuple(steps))


def step_value(chain: Chain, number: int) -> ChainValue:
    """What a step with one operand takes."""
    return inputs_of(chain.steps[number])[0]


def _given_back(step: Compute, types: list[str]) -> Compute:
    operations, outputs = list(step.operations), []
    for output in step.outputs:
        if output < len(step.inputs):
            operations.append(Operation("copy", (output,), types[output]))
            output = len(step.inputs) + len(operations) - 1
        outputs.append(output)
    if len(operations) == len(step.operations):
        return step
    return Compute(step.inputs, tuple(operations), tuple(outputs))


def renamed(step: Step, moved: dict[ChainValue, ChainValue]) -> Step:
    """A step whose operands stand elsewhere now."""
    if not any(value in moved for value in inputs_of(step)):
        return step

    def new(value: ChainValue) -> ChainValue:
        return moved.get(value, value)

    match step:
        case Product(moving=moving, add=add):
            return replace(step, moving=new(moving), add=None if add is None else new(add))
        case Gather(index=index):
            return replace(step, index=new(index))
        case Compute(inputs=inputs) | Transpose(inputs=inputs):
            return replace(step, inputs=tuple(map(new, inputs)))
        case Shuffle(value=value) | Write(value=value) | Send(value=value):
            return replace(step, value=new(value))
        case _:
            return step
