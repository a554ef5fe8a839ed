"""Pages of HTML that need nothing else, made from Jinja2 templates: a package's, and shared ones.

Charts are SVG inside the page, styles are in it; there is no script, font or picture to load. What
comes from outside is escaped.
"""

from functools import partial
from importlib.resources import files
from typing import Any

from tilesmith.display.html.charts import number
from tilesmith.display.output import duration


def rendered(package: str, template: str, **values: Any) -> str:
    """A template as HTML; a value that it names and nobody gave is an error.

    Args:
        package: whose folder `templates` has it; what it includes may lie beside it or here.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(partial(_text, package)),
        finalize=_plain,
    )
    environment.filters |= {"duration": duration, "number": number}
    return environment.get_template(template).render(**values)


def _plain(value: Any) -> Any:
    """A text without what turns the text around it, or is no character at all."""
    if type(value) is not str:  # HTML that was made here is of another type
        return value
    return "".join(c for c in value if c.isprintable() or c in "\n\t")


def _text(package: str, name: str) -> str:
    own = files(package).joinpath("templates", name)
    shared = files(__package__).joinpath("templates", name)
    return (own if own.is_file() else shared).read_text(encoding="utf-8")
