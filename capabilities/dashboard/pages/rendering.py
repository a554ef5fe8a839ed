"""Values become HTML: Jinja2 with everything escaped, and how numbers and times are written.

Invariant: nothing from the database is marked safe. Templates hold no inline script or style, which
the page's policy would not run anyway.
"""

import hashlib
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tilesmith.display.html.charts import number
from tilesmith.display.output import duration

STATIC = {"live.js": "text/javascript", "style.css": "text/css", "icon.svg": "image/svg+xml"}
"""Files served as they are, and their types."""


@lru_cache
def environment() -> Environment:
    """The templates of the live page."""
    templates = Environment(
        loader=PackageLoader("tilesmith.capabilities.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "duration": duration,
        "number": number,
        "span": span,
        "times": times,
        "stamp": stamp,
        "pace": pace,
    }
    templates.globals |= {"static": {name: f"/static/{name}?v={_digest(name)}" for name in STATIC}}
    return templates


def render(template: str, **values: Any) -> str:
    """A page."""
    return environment().get_template(template).render(**values)


@lru_cache
def static(name: str) -> bytes:
    """A file of `STATIC`."""
    return files("tilesmith.capabilities.dashboard").joinpath("static", name).read_bytes()


def _digest(name: str) -> str:
    """A new address for a new content: what a browser kept of an older version is not used."""
    return hashlib.sha256(static(name)).hexdigest()[:12]


def span(seconds: float) -> str:
    """A time to wait, as people say it: "8 s", "12 min", "3 h 20 min", "5 d"."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d"


def times(ratio: float) -> str:
    """A gain: "2.31×"."""
    return f"{ratio:.2f}×" if ratio < 100 else f"{ratio:,.0f}×"


def pace(rate: float) -> str:
    """Trials a second, or a minute where that says more."""
    return f"{number(rate)}/s" if rate >= 0.95 else f"{number(rate * 60)}/min"


def stamp(moment: datetime) -> str:
    """A point in time, in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
