"""What plans of libraries have in common, whether sizes vary or not."""

import re
from collections.abc import Sequence

from tilesmith.capabilities.c_library.code.plan import LibraryKernel
from tilesmith.compiler.recipe.program import CodeObject
from tilesmith.search_space.support.errors import ModelError

_SHOWN = 3


def kernel_of(operator: str, code: CodeObject) -> LibraryKernel:
    """A kernel of a plan."""
    return LibraryKernel(re.sub(r"\W", "_", operator, flags=re.ASCII), code.code)


def refuse_hosts(model: str, hosts: Sequence[tuple[str, str]]) -> None:
    """Refuse nodes that run on the host: (name, operator) of each.

    Raises:
        ModelError: there are any.
    """
    if not hosts:
        return
    names = [name for name, _ in hosts[:_SHOWN]]
    more = f" and {len(hosts) - _SHOWN} more" if len(hosts) > _SHOWN else ""
    operators = ", ".join(sorted({operator for _, operator in hosts}))
    raise ModelError(
        f"'{model}' cannot become a library: {', '.join(names)}{more} "
        f"run{'s' if len(hosts) == 1 else ''} on the host, in Python, for there are no kernels of "
        f"{operators} like that; leave such nodes out of the model (what comes before them can be "
        "its outputs), or compile it to a .tsm"
    )
