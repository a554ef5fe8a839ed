"""`WrongInstruction`: the first instruction of a simulated kernel whose output is wrong."""

from dataclasses import dataclass

from tilesmith.search_space.support.json_object import JsonObject


@dataclass(frozen=True)
class WrongInstruction(
    JsonObject,
    keys="number text engine cycle among kernel sources part tensor index found:computed wanted "
    "repair sentence",
):
    """See the module's docstring.

    Attributes:
        number: of the instruction in its kernel's program.
        text: the instruction with its operands.
        engine: that runs it (a slice, of chips that have slices).
        cycle: of the engine, counted from the kernel's first, in which it begins.
        among: numbers of instructions one of which it is, if it is not known which; else it alone.
        kernel: the step, and `sources` the model's nodes whose work it does.
        part: of the loop program that it is for.
        tensor, index: the first element of its output that is wrong.
        computed, wanted: what stands there, and what should.
        repair: what would be right instead; "" if that is not known.
    """

    number: int
    text: str
    engine: str
    cycle: int
    among: tuple[int, ...]
    kernel: str
    sources: tuple[str, ...]
    part: str
    tensor: str
    index: tuple[int, ...]
    computed: float
    wanted: float
    repair: str = ""

    @property
    def sentence(self) -> str:
        """All of it, for people."""
        one = f"instruction {self.number} of kernel '{self.kernel}'"
        if len(self.among) > 1:
            others = ", ".join(map(str, self.among[1:6]))
            more = " or one further" if len(self.among) > 6 else ""
            one += f" (or {others}{more})"
        place = f"{self.tensor}[{', '.join(map(str, self.index))}]"
        sentence = (
            f"the first whose output differs is {one} on {self.engine}, cycle {self.cycle}: "
            f"{' '.join(self.text.split())}; {place} is {self.computed:.7g} where "
            f"{self.wanted:.7g} is expected; it is for {self.part}"
        )
        return f"{sentence}; {self.repair}" if self.repair else sentence
