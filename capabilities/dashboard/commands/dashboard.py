"""`tilesmith dashboard`: a live page about what runs and what ran."""

from pathlib import Path

import click

from tilesmith.cli.help import Explained
from tilesmith.cli.options import database_option
from tilesmith.search_space.support.errors import InputError


@click.command(cls=Explained)
@database_option(required=True)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; other than loopback the page asks for a token.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--token",
    envvar="TILESMITH_DASHBOARD_TOKEN",
    help="What browsers must know; made up and printed once where --host is not loopback. Other "
    "users of this machine see options: rather set TILESMITH_DASHBOARD_TOKEN, or --token-file.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="A file that holds the token.",
)
@click.option(
    "--allow-host",
    "more_hosts",
    multiple=True,
    metavar="NAME",
    help="A name that browsers may call the page by, such as a reverse proxy's; repeatable.",
)
def dashboard(
    database: str,
    host: str,
    port: int,
    token: str | None,
    token_file: Path | None,
    more_hosts: tuple[str, ...],
) -> None:
    """Serve a page about the jobs of a database: progress, workers, failures, best schedules.

    It only reads, and keeps itself up to date. Ctrl-C ends it.
    """
    from tilesmith.jobs.extras import required

    required("starlette", "uvicorn", extra="dashboard")
    from tilesmith.capabilities.dashboard.server import ServerPlace, serve

    if token_file is not None:
        token = _token_in(token_file)
    place = ServerPlace(host, port, token, more_hosts)
    serve(database, place, lambda line: click.echo(line))


def _token_in(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise InputError(f"the token's file '{file}' cannot be read: {reason}") from error
