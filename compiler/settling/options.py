"""What each node could be run as: schedules with the layouts they read and write, and their cost.

A kernel has an option for each pair of layouts a schedule is known for; elementwise kernels, joins
and views work in every layout that all their tensors can have. Invariant: an option names a layout
for every operand, and the output's.
"""

from dataclasses import dataclass

from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.passes.elementwise import is_elementwise
from tilesmith.compiler.recipe.layouts import PLAIN, block
from tilesmith.compiler.settling.chooser import KnownSchedule, ScheduleChooser
from tilesmith.compiler.settling.image_layouts import blocked_elementwise, channels_last
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class Option:
    """One way to run a node.

    Attributes:
        operands: layout of each operand, `PLAIN` where the template does not ask for one.
        output: layout of the output.
        seconds: measured or estimated latency.
        workload, config: what is compiled; None for joins and views, which cost nothing.
        threads: how many threads at most run it; 0: all of the model's.
    """

    operands: tuple[str, ...]
    output: str
    seconds: float = 0.0
    origin: Origin = Origin.UNMEASURED
    workload: Workload | None = None
    config: Config | None = None
    threads: int = 0

    @classmethod
    def of(
        cls, workload: Workload, schedule: KnownSchedule, operands: tuple[str, ...], output: str
    ) -> "Option":
        """A workload run by a schedule, in these layouts."""
        seconds, origin = schedule.seconds, schedule.origin
        return cls(operands, output, seconds, origin, workload, schedule.config, schedule.threads)


def options_of(graph: Graph, node: Node, chooser: ScheduleChooser) -> list[Option]:
    """Every way to run a kernel, or to lay a join or view out."""
    if node.kind in ("join", "view"):
        return _alias_options(graph, node, chooser.target)
    if is_elementwise(node):
        return _elementwise_options(graph, node, chooser)
    known = chooser.schedules(node.work)
    if moves_images(node) and known.keys() == {(PLAIN, PLAIN)}:  # it has no layouts of its own
        return _elementwise_options(graph, node, chooser)
    return [
        _option(node.work, pair, schedule)
        for pair, schedule in known.items()
        if _fits(graph, node, pair)
    ]


def moves_images(node: Node) -> bool:
    """Whether a node puts tensors one behind the other, as a kernel, or repeats pixels."""
    return node.workload is not None and node.workload.operator in ("concat", "resize")


def _fits(graph: Graph, node: Node, pair: tuple[str, str]) -> bool:
    """Whether the tensors have the four axes that layouts other than plain speak of."""
    tensors = (node.inputs[0], node.writes[0])
    return all(
        layout == PLAIN or len(graph.info(name).dims) == 4
        for layout, name in zip(pair, tensors, strict=True)
    )


def _option(workload: Workload, pair: tuple[str, str], schedule: KnownSchedule) -> Option:
    """A template's first operand and whatever has the output's shape follow the pair."""
    template = template_of(workload.operator)
    full = template.output(workload).shape
    layouts = [pair[0]]
    for operand in template.operands(workload)[1:]:
        like_output = operand.role == "epilogue" and operand.shape == full
        layouts.append(pair[1] if like_output else PLAIN)
    return Option.of(workload, schedule, tuple(layouts), pair[1])


def _elementwise_options(graph: Graph, node: Node, chooser: ScheduleChooser) -> list[Option]:
    """Elementwise work is the same in every layout that all full operands share."""
    options = []
    ways = [
        blocked_elementwise(graph, node, layout) if is_elementwise(node) else None
        for layout in _image_layouts(chooser.target)
    ]
    last = backend_of(chooser.target).image_layouts
    ways += [channels_last(graph, node, layout) for layout in last]
    ways.insert(0, (node.work, (PLAIN,) * len(node.inputs)))
    layouts = (PLAIN, *_image_layouts(chooser.target), *last)
    for layout, inner in zip(layouts, ways, strict=True):
        if inner is None:
            continue
        changed, operands = inner
        options.append(Option.of(changed, chooser.best(changed), operands, layout))
    return options


def _image_layouts(target: Target) -> tuple[str, ...]:
    """Blocked layouts of the target's vectors."""
    return (f"NCHW{vector_width(target)}c",) if "vector.bytes" in target else ()


def _alias_options(graph: Graph, node: Node, target: Target) -> list[Option]:
    """A join or view works in a blocked layout too if its parts are of whole blocks."""
    whole = node.outputs[0] if node.kind == "join" else node.inputs[0]
    parts = node.inputs if node.kind == "join" else node.outputs
    count = len(node.inputs)
    options = [Option((PLAIN,) * count, PLAIN)]
    for layout in _image_layouts(target):
        offset = int(node.attribute("offset", 0))
        shapes = [graph.info(name).dims for name in (*parts, whole)]
        if whole not in graph.constants and is_channel_range(shapes, offset, block(layout)):
            options.append(Option((layout,) * count, layout))
    return options


def is_channel_range(shapes: list[tuple[int, ...]], offset: int, size: int) -> bool:
    """Whether images of one batch differ in channels only, cut at whole blocks of `size`."""
    first = shapes[0]
    if any(len(shape) != 4 or shape[0] != 1 or shape[2:] != first[2:] for shape in shapes):
        return False
    pixels = first[2] * first[3]
    return offset % (size * pixels) == 0 and all(shape[1] % size == 0 for shape in shapes)
