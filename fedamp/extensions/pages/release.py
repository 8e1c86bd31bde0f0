"""Write what may leave the server: the model, its ledger, a certificate and the scenario, signed (docs/releasing.md).

:func:`release` is the place to begin. :mod:`fedamp.accounting.verify` has the format of a bundle, because the
accountant alone can check one.
"""

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from fedamp.accounting.verify import FILES, FORMAT, MANIFEST, Bundle, signed_content, text_of
from fedamp.base.files import home, lock, write_secret
from fedamp.base.reading import TYPED, read_regular, regular
from fedamp.errors import InputError, RunFolderError, needs_extras
from fedamp.extensions.pages.public_scenario import public_scenario
from fedamp.runs.ledger import WRITTEN_BY
from fedamp.runs.run import read_run
from fedamp.runs.verification import complaint, verify_release

MODEL, LEDGER, SCENARIO, PAGE = FILES


@dataclass(frozen=True)
class ReleasedBundle:
    """A bundle that was written.

    Attributes:
        folder: of the bundle.
        archive: the same as a zip.
        public_key: of the server, 64 hexadecimal digits.
        papers: folder of a board's papers; None: not asked for.
    """

    folder: Path
    archive: Path
    public_key: str
    papers: Path | None = None


def release(run: Path, out: Path | None = None, key: Path | None = None, about: Path | None = None) -> ReleasedBundle:
    """Write the bundle of a run, as a folder and a zip beside it.

    The bundle is verified before it gets its name, so a half bundle is never left.

    Args:
        run: folder of a run that has ended.
        out: the new folder; default: ``RUN-release``.
        key: file of the server's Ed25519 key (PEM); default: :func:`default_key`, made if there is none.
        about: what :class:`fedamp.extensions.pages.board.AboutRelease` holds, as YAML: then the papers for a board are
            written beside the bundle, into ``OUT-papers``.

    Raises:
        RunFolderError: the run is not there, was changed, or ``out`` exists.
        InputError: the key or ``about`` cannot be read or made, ``out`` cannot be written, or papers were asked for of
            a run without a guarantee.
    """
    with needs_extras():
        from fedamp.extensions.pages import board
        from fedamp.extensions.pages.page import certificate, guessing_alone

    found = read_run(run)
    if wrong := complaint(found.verify()):
        raise RunFolderError(f"{run}: {wrong}")
    out = _with_own_name(out) if out else _with_own_name(run).with_name(f"{run.resolve().name}-release")
    archive = out.with_name(f"{out.name}.zip")
    papers = out.with_name(f"{out.name}-papers")
    answers = board.read_about(about) if about else None
    if answers:
        board.check_guarantee(found)
    for path in (out, archive, *([papers] if answers else [])):
        if path.exists():
            raise RunFolderError(f"{path}: exists already; expected: a new folder with --out")
    guess = guessing_alone(found)
    signing, writing = signing_key(key or default_key()), out.with_name(f".{out.name}.writing")
    packed = archive.with_name(f".{archive.name}.writing")
    try:
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
        for name in (MODEL, LEDGER):
            shutil.copyfile(regular(found.folder / name), writing / name)
        told = public_scenario(found.scenario, found.plan)
        (writing / SCENARIO).write_text(yaml.safe_dump(told, sort_keys=False, allow_unicode=True))
        (writing / PAGE).write_text(certificate(found, guess, answers), encoding="utf-8")
        public_key = signing.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
        with Bundle(writing) as bundle:
            digests = {name: bundle.file_digest(name) for name in FILES}
        manifest: dict[str, Any] = {"format": FORMAT, "written_by": WRITTEN_BY, "name": found.scenario.name}
        manifest |= {"head": found.ledger.head, "files": digests, "public_key": public_key}
        signature = signing.sign(signed_content(manifest)).hex()
        (writing / MANIFEST).write_text(text_of(manifest | {"signature": signature}))
        if wrong := complaint(verify_release(writing, public_key)):  # the run may have changed since it was read
            raise RunFolderError(f"{run}: {wrong}")
        with Bundle(writing) as bundle, packed.open("wb") as stream:
            bundle.write_archive(stream)
        writing.replace(out)
        packed.replace(archive)
    except OSError as error:
        raise InputError(f"{error.filename or out}: cannot be read or written ({error.strerror})") from None
    finally:
        shutil.rmtree(writing, ignore_errors=True)
        with suppress(OSError):
            packed.unlink()
    written = board.write_papers(found, guess, answers, papers) if answers else None
    return ReleasedBundle(out, archive, public_key, written)


def _with_own_name(path: Path) -> Path:
    """Return the path with its own name, which ``.`` and ``..`` have not."""
    return path.resolve() if path.name in ("", "..") else path


def default_key() -> Path:
    """Return the file of this user's key: under ``$FEDAMP_HOME``, or ``~/.config/fedamp``."""
    return home() / "release.key"


def signing_key(file: Path) -> Ed25519PrivateKey:
    """Read the key in a file (PEM, for its owner alone), or make a new one if there is no file.

    Raises:
        InputError: it cannot be read or made, others may read it, or it is another kind of key.
    """
    try:
        if not file.exists():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = Ed25519PrivateKey.generate()
            text = new.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            with lock(file.with_suffix(".lock")):  # of two first releases one makes the key
                if not file.exists():
                    write_secret(file, text.decode())
        if file.stat().st_mode & 0o077:
            raise InputError(f"{file}: others may read this key; expected: chmod 600")
        found = load_pem_private_key(read_regular(file, TYPED), password=None)
    except OSError as error:
        raise InputError(f"{file}: cannot be read or made ({error.strerror})") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(f"{file}: not a private key without a password ({error})") from None
    if not isinstance(found, Ed25519PrivateKey):
        raise InputError(f"{file}: not an Ed25519 key; expected: openssl genpkey -algorithm ed25519")
    return found
