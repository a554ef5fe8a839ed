"""Optional libraries: asked for before they are used, with one sentence where they are absent."""

from importlib.util import find_spec

from tilesmith.search_space.support.errors import DependencyError


def required(*packages: str, extra: str) -> None:
    """Make sure of packages that an extra installs.

    Raises:
        DependencyError: one is not installed.
    """
    for package in packages:
        if find_spec(package) is None:
            raise DependencyError(
                f"{package} is not installed; install it with: pip install 'tilesmith[{extra}]'"
            )
