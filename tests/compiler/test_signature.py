"""Signed artifacts: loaded by whoever has the key, refused in a sentence otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tests.compiler.model_builder import model_of, random
from tests.end_to_end.command import refuse, succeed
from tilesmith.compiler.artifact import signature

ed25519 = pytest.importorskip(
    "cryptography.hazmat.primitives.asymmetric.ed25519", reason="pip install 'tilesmith[signing]'"
)
ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")


def _write(folder: Path, name: str, private: object, password: bytes | None = None) -> None:
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    hidden = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    (folder / f"{name}.pem").write_bytes(private.private_bytes(pem, pkcs8, hidden))  # type: ignore[attr-defined]
    public = private.public_key().public_bytes(  # type: ignore[attr-defined]
        pem, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (folder / f"{name}.public.pem").write_bytes(public)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled model with weights that would be mapped, and keys."""
    folder = tmp_path_factory.mktemp("signed")
    model = model_of(
        "g (float[2, 512] x) => (float[2, 600] y) { y = MatMul(x, w) }", w=random(512, 600)
    )
    ts.compile(model).save(folder / "m.tsm")
    _write(folder, "ours", ed25519.Ed25519PrivateKey.generate())
    _write(folder, "theirs", ed25519.Ed25519PrivateKey.generate())
    _write(folder, "hidden", ed25519.Ed25519PrivateKey.generate(), b"secret")
    _write(folder, "curve", ec.generate_private_key(ec.SECP256R1()))
    said = succeed("sign", folder / "m.tsm", "--key", folder / "ours.pem")
    assert said["signature"] == str(folder / "m.tsm.sig")
    return folder


def test_the_owner_of_the_key_is_believed(shop: Path) -> None:
    x = {"x": random(2, 512)}
    signed = ts.load(shop / "m.tsm", trusted_key=shop / "ours.public.pem").run(x)
    np.testing.assert_array_equal(signed["y"], ts.load(shop / "m.tsm").run(x)["y"])


def test_the_signature_is_ed25519_of_the_file(shop: Path) -> None:
    """As any other program verifies it."""
    key = serialization.load_pem_public_key((shop / "ours.public.pem").read_bytes())
    key.verify((shop / "m.tsm.sig").read_bytes(), (shop / "m.tsm").read_bytes())


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("theirs.public.pem", "is not what the owner of '{}' signed: 'm.tsm.sig' is another key's"),
        ("curve.public.pem", "'{}' is not an Ed25519 public key; openssl genpkey"),
        ("ours.pem", "'{}' is not a public key in PEM form"),
        ("m.tsm", "'{}' is not a public key in PEM form"),
        ("none.pem", "'{}' cannot be read: No such file or directory"),
    ],
)
def test_other_keys_are_refused(shop: Path, key: str, said: str) -> None:
    with pytest.raises(ts.TilesmithError) as refused:
        ts.load(shop / "m.tsm", trusted_key=shop / key)
    assert said.format(shop / key) in str(refused.value)


@pytest.mark.parametrize("place", [0, 1000, -1000, -1])
def test_a_changed_byte_is_refused_wherever_it_is(shop: Path, tmp_path: Path, place: int) -> None:
    content = bytearray((shop / "m.tsm").read_bytes())
    content[place] ^= 1
    (tmp_path / "m.tsm").write_bytes(content)
    (tmp_path / "m.tsm.sig").write_bytes((shop / "m.tsm.sig").read_bytes())
    with pytest.raises(ts.ModelError, match="or of other bytes"):
        ts.load(tmp_path / "m.tsm", trusted_key=shop / "ours.public.pem")


def test_a_signature_that_is_none_is_refused(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "m.tsm").write_bytes((shop / "m.tsm").read_bytes())
    key = shop / "ours.public.pem"
    with pytest.raises(ts.ModelError, match=r"is not signed: there is no 'm.tsm.sig' beside it"):
        ts.load(tmp_path / "m.tsm", trusted_key=key)
    (tmp_path / "m.tsm.sig").write_bytes(b"short")
    with pytest.raises(ts.ModelError, match="or of other bytes"):
        ts.load(tmp_path / "m.tsm", trusted_key=key)


def test_the_environment_holds_for_every_command(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.tsm").write_bytes((shop / "m.tsm").read_bytes())
    monkeypatch.setenv(signature.TRUSTED_KEY, str(shop / "ours.public.pem"))
    succeed("run", shop / "m.tsm")
    for words in (("run",), ("bench",), ("profile",), ("compile", "--emit", "object", "-o", "m.o")):
        command, *options = words
        assert "is not signed" in refuse(command, tmp_path / "m.tsm", *options)


@pytest.mark.parametrize(("key", "said"), [("hidden", "in PEM form"), ("curve", "not an Ed25519")])
def test_a_key_that_cannot_sign_is_refused(shop: Path, tmp_path: Path, key: str, said: str) -> None:
    (tmp_path / "m.tsm").write_bytes(b"anything")
    assert said in refuse("sign", tmp_path / "m.tsm", "--key", shop / f"{key}.pem")
    assert not (tmp_path / "m.tsm.sig").exists()
    assert "cannot be read" in refuse("sign", tmp_path / "no.tsm", "--key", shop / "ours.pem")


def test_without_the_library_one_sentence_says_what_to_install(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cryptography.exceptions", "cryptography.hazmat.primitives"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(ts.DependencyError, match=r"pip install 'tilesmith\[signing\]'"):
        ts.load(shop / "m.tsm", trusted_key=shop / "ours.public.pem")
