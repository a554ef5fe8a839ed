"""A timeline as one static HTML page with SVGs, no script needed: for people without Perfetto.

A family says what its lanes are and gives a bar for each of its instructions; the page adds lanes
of operators, times, how busy everything was, and of a long program a stretch with every instruction
apart. Bars that would be thinner than a pixel are merged with their neighbours, so that the page
stays small. The style is that of the other pages, light or dark, any width.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tilesmith.families.kit.simulation.operator_lane import OperatorSpan, svg
from tilesmith.search_space.support.files import written

WIDTH, LABEL, TICKS = 1200, 90, 8
"""Pixels: of the time axis, of the labels beside it; and times shown above it."""


@dataclass(frozen=True)
class TimelineBar:
    """An instruction in a picture.

    Attributes:
        lane: bars of one lane do not overlap, and are given in order of time.
        start, end: in the family's unit of time.
        top, height: in pixels.
        tooltip: asked for only where the bar is shown.
    """

    lane: Hashable
    start: float
    end: float
    top: float
    height: float
    colour: str
    tooltip: Callable[[], str]


@dataclass(frozen=True)
class TimelinePage:
    """What a family says of a run so that it can be shown.

    Attributes:
        what: kind of what is busy.
        shares: how busy each was, 0 to 1.
        colours: by kind of instruction.
        per_us: of the family's units of time.
        lane: height of an operator's lane in pixels.
        picture: SVG of the time from one to another, in the family's unit.
    """

    what: str
    title: str
    summary: str
    shares: Mapping[str, float]
    colours: Mapping[str, str]
    per_us: float
    lane: float
    picture: Callable[[float, float], str]

    def html(
        self, operators: Sequence[OperatorSpan], windows: Iterable[tuple[str, float, float]]
    ) -> str:
        """The page with a picture of each window: its heading, where it begins and ends."""
        pictures = ""
        for heading, begin, end in windows:
            times = begin / self.per_us, end / self.per_us
            lanes = svg(operators, times, WIDTH, LABEL, self.lane)
            pictures += f"<p>{heading}</p>" if heading else ""
            pictures += f"<div>{lanes}</div>{self.picture(begin, end)}"
        rows = (
            f"<tr><td>{escape(name)}</td><td>{share:.1%}</td></tr>"
            for name, share in self.shares.items()
        )
        legend = (
            f'<i style="background:{colour}"></i>{name}' for name, colour in self.colours.items()
        )
        return _PAGE.format(
            what=self.what, title=escape(self.title), summary=escape(self.summary),
            rows="".join(rows), legend="".join(legend), pictures=pictures,
        )  # fmt: skip


def picture(
    bars: Iterable[TimelineBar],
    window: tuple[float, float],
    labels: Iterable[tuple[float, str]],
    time: Callable[[float], str],
    size: tuple[float, float],
) -> str:
    """An SVG of bars.

    Args:
        labels: beside the lanes, each at its height.
        time: how a time is written above the lanes.
        size: heights of the whole and of its letters.
    """
    begin, end = window
    height, letters = size
    texts = [f'<text x="0" y="{y:.0f}">{label}</text>' for y, label in labels]
    for tick in range(TICKS):
        at, x = begin + (end - begin) * tick / TICKS, LABEL + WIDTH * tick / TICKS
        texts.append(f'<text x="{x:.0f}" y="12" fill="#888">{time(at)}</text>')
    return (
        f'<svg viewBox="0 0 {WIDTH + LABEL} {height}" font-size="{letters}">'
        f"{''.join(texts)}{''.join(_merged(bars, begin, end))}</svg>"
    )


def _merged(bars: Iterable[TimelineBar], begin: float, end: float) -> Iterator[str]:
    """Bars as they are drawn, a pixel wide at least; those inside one drawn before are left out."""
    scale = WIDTH / max(end - begin, 1e-9)
    reached: dict[Hashable, float] = {}
    for bar in bars:
        before = reached.get(bar.lane, -1.0)
        right = min((bar.end - begin) * scale, float(WIDTH))
        if right < before + 1.0:
            continue
        left = max((bar.start - begin) * scale, 0.0, before)
        reached[bar.lane] = right = max(right, left + 1.0)
        yield (
            f'<rect x="{LABEL + left:.1f}" y="{bar.top:.1f}" width="{right - left:.1f}" '
            f'height="{bar.height:.1f}" fill="{bar.colour}"><title>{escape(bar.tooltip())}</title>'
            "</rect>"
        )


def draw(path: Path, page: Callable[[], str], trace: Callable[[], str]) -> tuple[str, ...]:
    """Write a run as the file that was asked for: HTML where the path says so, else a trace; what a
    reader has to know of it.

    Raises:
        InputError, JobError: as `search_space.support.files.written`.
    """
    if path.suffix == ".html":
        with written(path) as file:
            file.write(page().encode())
        return ()
    notice = trace()
    return (notice,) if notice else ()


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>
:root {{ color-scheme: light dark; --ground: #f6f7f9; --surface: #ffffff; --ink: #1a222d;
  --muted: #556170; --line: #dde2e8; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ground: #10151b; --surface: #171e26;
  --ink: #e4e9ef; --muted: #9ba8b7; --line: #29333f; }} }}
body {{ margin: 0; padding: 1rem clamp(.8rem, 2vw, 2rem); background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }}
h1 {{ font-size: 1.45rem; line-height: 1.25; overflow-wrap: anywhere; }}
table {{ border-collapse: collapse; background: var(--surface); }}
td, th {{ padding: .2rem .8rem; text-align: left; border: 1px solid var(--line); }}
td:last-child {{ text-align: right; font-variant-numeric: tabular-nums; }}
i {{ display: inline-block; width: 10px; height: 10px; margin: 0 4px 0 12px; }}
svg {{ display: block; width: 100%; min-width: 900px; height: auto; background: var(--surface); }}
svg text:not([fill]) {{ fill: var(--ink); }} svg text[fill="#888"] {{ fill: var(--muted); }}
.wide {{ overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }}
</style></head>
<body><h1>{title}</h1> <p>{summary}</p>
<table><tr><th>{what}</th><th>busy</th></tr>{rows}</table> <p>{legend}</p>
<div class="wide" role="region" aria-label="Timeline" tabindex="0">{pictures}</div></body></html>
"""
