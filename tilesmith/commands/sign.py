"""`tilesmith sign`: sign an artifact, or any file, so that who loads it knows whose it is."""

from pathlib import Path

import click

from tilesmith.cli.help import Explained
from tilesmith.cli.options import json_option
from tilesmith.display.output import print_json


@click.command(cls=Explained)
@click.argument("file", type=click.Path(path_type=Path), metavar="MODEL.tsm")
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    required=True,
    metavar="KEY.pem",
    help="Ed25519 private key, as 'openssl genpkey -algorithm ed25519' writes one.",
)
@json_option
def sign(file: Path, key: Path, as_json: bool) -> None:
    """Write the signature of MODEL.tsm beside it, as MODEL.tsm.sig.

    An artifact holds native code. Where $TILESMITH_TRUSTED_KEY names the public key (or
    'ts.load(..., trusted_key=)' does), only artifacts with its signature are loaded.
    """
    from tilesmith.compiler.artifact import signature

    written = signature.sign(file, key)
    if as_json:
        print_json({"signature": str(written)})
    else:
        click.echo(f"signed '{file}': {written}")
