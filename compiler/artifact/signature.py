"""Signatures of artifacts: whose file this is, before anything of it is read.

An artifact holds native code, so whoever made it decides what runs, as with a shared library. A
signature is a file beside it, `model.tsm.sig`: the 64 bytes of Ed25519 (RFC 8032) over the bytes of
the artifact, as `openssl pkeyutl -sign -rawin` writes them. Keys are PEM files, as
`openssl genpkey -algorithm ed25519` writes them. The library `cryptography` signs and verifies.

Invariant: what is read after a verification are the very bytes that were verified, in memory; a
file that is replaced meanwhile changes nothing.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tilesmith.search_space.support.errors import DependencyError, InputError, ModelError
from tilesmith.search_space.support.files import ending, written

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SUFFIX = ".sig"

TRUSTED_KEY = "TILESMITH_TRUSTED_KEY"
"""The environment variable that names a public key which every artifact is verified with."""

Key = TypeVar("Key")


def signature_of(path: Path) -> Path:
    """Where the signature of an artifact is looked for."""
    return path.with_name(path.name + SUFFIX)


def sign(path: Path, key: Path) -> Path:
    """Write the signature of a file beside it; returns where.

    Args:
        key: PEM file of an Ed25519 private key, not encrypted.

    Raises:
        InputError: file or key cannot be read, or the signature cannot be written.
        DependencyError: `cryptography` is not installed.
    """
    crypto = _cryptography()
    private = _read_key(
        key, "private", crypto.ed25519.Ed25519PrivateKey,
        lambda text: crypto.serialization.load_pem_private_key(text, password=None),
    )  # fmt: skip
    signature = private.sign(_content(path, InputError))
    with written(signature_of(path)) as stream:
        stream.write(signature)
    return signature_of(path)


def trusted_key(given: str | Path | None) -> Path | None:
    """The public key that artifacts are verified with: the one given, or the environment's."""
    named = given or os.environ.get(TRUSTED_KEY)
    return Path(named) if named else None


def verified(path: Path, key: Path, what: str = "artifact") -> bytes:
    """The bytes of an artifact that the owner of a key has signed.

    Args:
        key: PEM file of an Ed25519 public key.
        what: the file is, for messages.

    Raises:
        InputError: the key cannot be read.
        ModelError: there is no signature, or it is not that of these bytes by this key.
        DependencyError: `cryptography` is not installed.
    """
    crypto = _cryptography()
    public: Ed25519PublicKey = _read_key(
        key, "public", crypto.ed25519.Ed25519PublicKey, crypto.serialization.load_pem_public_key
    )
    beside = signature_of(path)
    if not beside.exists():
        raise ModelError(
            f"{what} '{path}' is not signed: there is no '{beside.name}' beside it; "
            f"tilesmith sign writes one"
        )
    content = _content(path, ModelError)
    try:
        public.verify(_content(beside, ModelError), content)
    except crypto.InvalidSignature:
        raise ModelError(
            f"{what} '{path}' is not what the owner of '{key}' signed: "
            f"'{beside.name}' is another key's signature, or of other bytes"
        ) from None
    return content


def _content(path: Path, error: type[InputError | ModelError]) -> bytes:
    try:
        return ending(path).read_bytes()
    except OSError as failure:
        raise error(f"'{path}' cannot be read: {failure.strerror}") from failure


def _read_key(path: Path, which: str, kind: type[Key], load: Any) -> Key:
    text = _content(path, InputError)
    try:
        key = load(text)
    except (ValueError, TypeError) as error:  # no PEM, or an encrypted key without its password
        said = " ".join(str(error).split())[:100]
        raise InputError(f"'{path}' is not a {which} key in PEM form: {said}") from error
    except _cryptography().UnsupportedAlgorithm as error:
        raise InputError(f"'{path}' is a key of an algorithm that is not supported") from error
    if not isinstance(key, kind):
        raise InputError(
            f"'{path}' is not an Ed25519 {which} key; "
            "openssl genpkey -algorithm ed25519 makes one, openssl pkey -pubout its public half"
        )
    return key


def _cryptography() -> Any:
    """The parts of the library that are used here."""
    from types import SimpleNamespace

    try:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise DependencyError(
            "cryptography is not installed; install it with: pip install 'tilesmith[signing]'"
        ) from error
    return SimpleNamespace(
        InvalidSignature=InvalidSignature, UnsupportedAlgorithm=UnsupportedAlgorithm,
        serialization=serialization, ed25519=ed25519,
    )  # fmt: skip
