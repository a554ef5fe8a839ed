"""Pages of HTML that need nothing else, made from the Jinja2 templates beside this file.

Charts are SVG inside the page, styles are in it; there is no script, font or picture to load. What
comes from outside is escaped.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from tilesmith.display.charts import number
from tilesmith.display.output import duration


def rendered(template: str, **values: Any) -> str:
    """A template of this package as HTML; a value that it names and nobody gave is an error."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_text),
        finalize=_plain,
    )
    environment.filters |= {"duration": duration, "number": number}
    return environment.get_template(template).render(**values)


def _plain(value: Any) -> Any:
    """A text without what turns the text around it, or is no character at all."""
    if type(value) is not str:  # HTML that was made here is of another type
        return value
    return "".join(c for c in value if c.isprintable() or c in "\n\t")


def _text(name: str) -> str:
    folder = files("tilesmith.display").joinpath("templates")
    return folder.joinpath(name).read_text(encoding="utf-8")
