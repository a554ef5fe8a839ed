"""Which operator is worked on when: a lane of a timeline, beside those of engines.

Operators of one program overlap, so that there are as many lanes as are under way at once: each
takes the first that is free. Names are the model's nodes'.
Invariant: spans of a lane do not overlap.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

PROCESS = 2
"""Of a trace; engines are process 1."""

HUES = 12
_TEXT = 6.2
"""Pixels a letter takes, about."""


@dataclass(frozen=True)
class OperatorSpan:
    """An operator at work, in us.

    Attributes:
        name: of the nodes it came from.
        details: what else a reader may want to know of it.
    """

    name: str
    start: float
    end: float
    details: Mapping[str, Any] = field(default_factory=dict)


def lanes(spans: Sequence[OperatorSpan]) -> list[list[OperatorSpan]]:
    """Spans by lane, as few as there can be."""
    lanes: list[list[OperatorSpan]] = []
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        free = next((lane for lane in lanes if lane[-1].end <= span.start), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    return lanes


def events(spans: Sequence[OperatorSpan], until: float = float("inf")) -> Iterator[dict[str, Any]]:
    """Chrome/Perfetto events of spans that begin before `until` us."""
    shown = [span for span in spans if span.start < until]
    if not shown:
        return
    yield {"ph": "M", "ts": 0, "pid": PROCESS, "tid": 0, "name": "process_name",
           "args": {"name": "operators"}}  # fmt: skip
    yield {"ph": "M", "ts": 0, "pid": PROCESS, "tid": 0, "name": "process_sort_index",
           "args": {"sort_index": -1}}  # fmt: skip
    for number, lane in enumerate(lanes(shown)):
        yield {"ph": "M", "ts": 0, "pid": PROCESS, "tid": number, "name": "thread_name",
               "args": {"name": f"operators {number + 1}"}}  # fmt: skip
        for span in lane:
            yield {
                "ph": "X", "pid": PROCESS, "tid": number, "name": span.name, "cat": "operator",
                "ts": span.start, "dur": span.end - span.start, "args": dict(span.details),
            }  # fmt: skip


def svg(
    spans: Sequence[OperatorSpan],
    window: tuple[float, float],
    width: float,
    label: float,
    lane: float,
) -> str:
    """The lanes of the time from one to another (us), as a picture of their own."""
    begin, end = window
    shown = [span for span in spans if span.start < end and span.end > begin]
    if not shown:
        return ""
    rows = lanes(shown)
    scale = width / max(end - begin, 1e-12)
    parts = [f'<text x="0" y="{lane * 0.7:.0f}">operators</text>']
    known = {name: number for number, name in enumerate(dict.fromkeys(s.name for s in spans))}
    for number, row in enumerate(rows):
        for span in row:
            left = max(span.start - begin, 0.0) * scale
            right = min((span.end - begin) * scale, width)
            wide = max(right - left, 1.0)
            hue = known[span.name] % HUES * 360 // HUES
            tooltip = escape(f"{span.name}: {span.start:.3f} to {span.end:.3f} us")
            parts.append(
                f'<rect x="{label + left:.1f}" y="{number * lane + 2:.1f}" width="{wide:.1f}" '
                f'height="{lane - 4:.1f}" fill="hsl({hue} 55% 72%)"><title>{tooltip}</title></rect>'
            )
            fits = int(wide / _TEXT)
            if fits >= 4:
                text = span.name if len(span.name) <= fits else span.name[: fits - 1] + "\u2026"
                parts.append(
                    f'<text x="{label + left + 2:.1f}" y="{number * lane + lane * 0.7:.1f}" '
                    f'pointer-events="none" fill="#222">{escape(text)}</text>'
                )
    return (
        f'<svg viewBox="0 0 {width + label:.0f} {lane * len(rows):.0f}" font-size="11">'
        f"{''.join(parts)}</svg>"
    )
