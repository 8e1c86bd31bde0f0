"""A released bundle: the files that may leave the server, their digests, and the server's signature over them."""

import hashlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from fedamp.accounting.ledgers import Check, Json, altered_ledger, ledger_checks, mechanism_check, rounds_check

MANIFEST = "release.json"
FILES = ("model.safetensors", "ledger.json", "scenario.public.yaml", "certificate.html")
"""All that a bundle may hold beside its manifest. The first two are always there."""

FORMAT = "fedamp release 1"
_KEYS = {"format", "written_by", "name", "head", "files", "public_key"}
_MOST_TEXT = 1 << 29  # bytes of a file that is read whole; the model is read in pieces
_PIECE = 1 << 20


def text_of(manifest: Json) -> str:
    """The only text of a manifest, so that no byte of it can change unseen."""
    return json.dumps(manifest, indent=1, sort_keys=True) + "\n"


def signed(manifest: Json) -> bytes:
    """What the signature of a manifest covers."""
    return json.dumps({key: manifest[key] for key in _KEYS}, sort_keys=True).encode()


def is_bundle(path: Path) -> bool:
    """Whether a path is a released bundle: a folder with a manifest, or an archive."""
    return path.suffix == ".zip" or (path / MANIFEST).is_file()


class Bundle:
    """A folder or archive, opened for reading; ValueError: it is none. As a context manager."""

    def __init__(self, path: Path) -> None:
        self._open, self._path = ExitStack(), path
        try:
            if path.is_dir():
                self._sizes = {file.name: file.stat().st_size for file in path.iterdir()}
                self._archive = None
                strange = [file.name for file in path.iterdir() if not file.is_file() or file.is_symlink()]
            else:
                self._archive = self._open.enter_context(zipfile.ZipFile(path))
                names = [each.filename for each in self._archive.infolist()]
                strange = [name for name in names if names.count(name) > 1]
                self._sizes = {each.filename: each.file_size for each in self._archive.infolist()}
                # Stored as they are: no bomb.
                packed = any(each.compress_type != zipfile.ZIP_STORED for each in self._archive.infolist())
                if packed or sum(self._sizes.values()) > path.stat().st_size:
                    strange.append(path.name)
            self.strange = sorted({*strange, *(set(self._sizes) - {MANIFEST, *FILES})})
            if self._archive is not None and not self.strange and not self._is_canonical():
                self.strange = [path.name]
        except (OSError, RuntimeError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: no bundle ({error})") from None

    def __enter__(self) -> "Bundle":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def names(self) -> set[str]:
        return set(self._sizes)

    def write_archive(self, file: IO[bytes]) -> None:
        """Write the one archive of these files; any other one of them holds bytes that nobody has signed."""
        with zipfile.ZipFile(file, "w") as archive:
            for name in (name for name in (MANIFEST, *FILES) if name in self._sizes):
                about = zipfile.ZipInfo(name)  # of 1980, without attributes
                about.create_system, about.file_size = 0, self._sizes[name]
                with self.stream(name) as content, archive.open(about, "w") as copied:
                    shutil.copyfileobj(content, copied, _PIECE)

    def _is_canonical(self) -> bool:
        """Whether the archive is, byte by byte, the one of its files: no header, gap or attribute is unseen."""
        with self._path.open("rb") as ours, tempfile.TemporaryFile() as again:
            self.write_archive(again)
            again.seek(0)
            while True:
                one, other = ours.read(_PIECE), again.read(_PIECE)
                if one != other or not one:
                    return one == other

    def stream(self, name: str) -> IO[bytes]:
        """A file, by a name that a bundle may hold."""
        return (self._path / name).open("rb") if self._archive is None else self._archive.open(name)

    def text(self, name: str) -> str:
        """The content of a file of text; ValueError: it is none, or too large."""
        if self._sizes.get(name, 0) > _MOST_TEXT:
            raise ValueError(f"{name}: larger than any ledger")
        try:
            with self.stream(name) as stream:
                return stream.read(_MOST_TEXT).decode()
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError(f"{name}: cannot be read ({error})") from None

    def json(self, name: str) -> dict[str, Any]:
        """The content of a file of JSON; ValueError: it is none, or too large."""
        try:
            found = json.loads(self.text(name), object_pairs_hook=_each_key_once)
        except RecursionError:
            raise ValueError(f"{name}: cannot be read (nested too deeply)") from None
        except ValueError as error:
            raise ValueError(f"{name}: cannot be read ({error})") from None
        if not isinstance(found, dict):
            raise ValueError(f"{name}: not an object")
        return found

    def sha256(self, name: str) -> str:
        """Of a file's content."""
        state = hashlib.sha256()
        try:
            with self.stream(name) as stream:
                while piece := stream.read(_PIECE):
                    state.update(piece)
        except (OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"{name}: cannot be read ({error})") from None
        return state.hexdigest()


def verify_bundle(path: Path, public_key: str | None = None) -> list[Check]:
    """Check digests, signature and chain, and compute the ledger's numbers again.

    Args:
        path: folder or archive.
        public_key: of the server, 64 hexadecimal digits, as it was told elsewhere; default: the bundle's own.

    Raises:
        ValueError: there is no bundle, or it cannot be read.
    """
    with Bundle(path) as bundle:
        if bundle.strange:  # before anything is read
            return [Check("files", "fail", "; ".join(f"{name}: not of the bundle" for name in bundle.strange))]
        manifest = bundle.json(MANIFEST)
        checks = [*_of_files(bundle, manifest), signature(manifest, public_key)]
        if checks[0].verdict == "fail":
            return checks  # nothing in it can be believed
        ledger = bundle.json("ledger.json")
        try:
            return checks + list(_of_ledger(ledger, manifest))
        except (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
            return [*checks, Check("ledger", "fail", f"what it says cannot be charged ({error})")]


def _of_files(bundle: Bundle, manifest: Json) -> Iterator[Check]:
    known = set(manifest) == _KEYS | {"signature"} and manifest["format"] == FORMAT
    known = known and bundle.text(MANIFEST) == text_of(manifest) and str(manifest["signature"]).islower()
    if not known or not isinstance(manifest["files"], dict):
        yield Check("files", "fail", f"{MANIFEST} is not a manifest of {FORMAT!r}")
        return
    told = manifest["files"]
    wrong = [f"{name}: not in {MANIFEST}" for name in sorted(bundle.names - {MANIFEST, *told})]
    wrong += [f"{name}: gone" for name in sorted({*told, *FILES[:2]} - bundle.names)]
    present = [name for name in FILES if name in bundle.names and name in told]
    wrong += [f"{name}: not as it was released" for name in present if bundle.sha256(name) != told[name]]
    yield Check.of("files", f"{len(told)} files, as they were released", fail="; ".join(wrong) or None)


def signature(manifest: Json, public_key: str | None) -> Check:
    """Whether the server's key has signed the manifest."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        return Check(
            "signature", "caution", "not checked: cryptography is not installed (pip install 'fedamp[signatures]')"
        )
    own = str(manifest.get("public_key"))
    if public_key is not None and public_key.strip().lower() != own:
        return Check("signature", "fail", f"by the key {own:.64}, but {public_key.strip():.64} was expected")
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(own)).verify(
            bytes.fromhex(manifest["signature"]), signed(manifest)
        )
    except (InvalidSignature, LookupError, TypeError, ValueError):
        return Check("signature", "fail", f"not a signature of {MANIFEST} by the key {own:.64}")
    unknown = f"by the key {own}, as the bundle itself says: compare it with what the server told you, or give --key"
    return Check.of("signature", f"by the key {own}", caution=None if public_key else unknown)


def _of_ledger(ledger: Json, manifest: Json) -> Iterator[Check]:
    complaints = list(altered_ledger(ledger))
    if ledger["head"] != manifest["head"]:
        complaints.append(f"ledger.json: head: {ledger['head']}, but {MANIFEST} says {manifest['head']}")
    left, released = ledger["files"] or {}, manifest["files"]["model.safetensors"]
    if left.get("model.safetensors") != released:
        complaints.append("model.safetensors: not the model of this ledger")
    yield Check.of("chain", f"head {ledger['head']}", fail="; ".join(complaints) or None)
    yield mechanism_check(ledger)
    yield rounds_check(ledger)
    yield from ledger_checks(ledger)
    seed = str(ledger["noise_seed"])
    yield Check("noise", "caution" if seed.startswith("known") else "pass", seed)


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Readers differ in which of two values they take."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found
