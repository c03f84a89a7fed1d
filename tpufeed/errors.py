"""The error tree. Each leaf also inherits the builtin that callers may already catch.

```text
TpufeedError                        exit code 1: the work failed
+-- UsageError                      exit code 2: the request cannot be met; nothing was changed
|   +-- OptionError (ValueError)            an option's value, or two options that do not fit together
|   +-- UnknownSchemeError (ValueError)     a URL that no store can open
|   +-- NoInputsError (ValueError)          a source without images
|   +-- SourceError (OSError)               a source that cannot be listed
|   +-- DatasetNotFoundError (FileNotFoundError)
|   +-- DatasetExistsError (FileExistsError)
|   +-- DuplicateWriterError (FileExistsError)   another build owns the destination
|   +-- MissingExtraError (ImportError)
+-- StoreError (OSError)            bytes that cannot be read or written
|   +-- ObjectNotFoundError (FileNotFoundError)
|   +-- ObjectExistsError (FileExistsError)      a create-only put met an object
|   +-- ObjectChangedError                        another version than the one asked for
|   +-- LinkError                                 a symbolic link within a dataset
|   +-- AccessError (PermissionError)             credentials that are missing, expired or insufficient
|   +-- UnavailableError (ConnectionError)        no answer, or only failures, until a deadline
|   +-- DatasetUnreadableError                    files that `verify` could not read; lists all of them
+-- DamageError (ValueError)        stored bytes that are not what was written
|   +-- RecordError                         framing, a CRC, or a tf.train.Example
|   +-- ShardError                          size or CRC of a shard against the manifest
|   +-- DatasetDamagedError                 damages that `verify` found; lists all of them
|   +-- ManifestError
|       +-- ManifestVersionError
+-- ImageError (ValueError)         an image that cannot be used; has a reason code
+-- OpError (RuntimeError)          a user's op that fails, or breaks the contract of ops
+-- BuildError (RuntimeError)       a build that could not finish
|   +-- TaskError                           a task failed for good
|   +-- TooManyRejectsError
+-- LoaderError (RuntimeError)      a loader that cannot continue: closed, hung, without workers, or ranks disagree
```
"""

import hashlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

_MASK = "***"
# Patterns are compiled when they are first used, not at import.
_USER = r"([a-zA-Z][a-zA-Z0-9+.\-]*)://([^/?#\s]*)@"
_TOKEN_USERS = {"http", "https"}  # here a user name may be a token, but not in abfs://container@account
_SECRET_NAME = (
    r"(?:[\w.%\-]*(?:token|signature|secret|passw|pwd|credential|api[_\-]?key|access[_\-]?key|upload_id|"
    r"auth(?!or)|session|jwt)[\w.%\-]*|(?:[\w.%\-]*[_.\-])?(?:sig|key|sas|pass|code|policy))"
)
_SECRET = rf"(?i)(?<=[?&;#])({_SECRET_NAME}=)[^&#\s'\"<>`]+"
# Parameters of signed URLs: those of Google, Amazon, Alibaba, Tencent and Akamai count by their names, others only next
# to a signature, and Azure's short ones only next to `sig`, because `?st=3` may be anything.
_OF_SIGNATURE = (
    r"(?i)(?:x-(?:goog|amz|oss)|q-(?:sign|ak|key|url|header))-.*|hdn\w+|googleaccessid|key-pair-id|ossaccesskeyid"
)
_BESIDE_SIGNATURE = r"(?i)expire[sd]?|expiry|response-.*"
_BESIDE_SIG = r"(?i)s[eptvrs]|spr|sip|sktid|skoid|sk[tesv]|srt|sdd|s[au]oid|scid|si|rsc[cdelt]|ses"
_MAYBE_SECRET = r"(?i)key|code|session"  # `?key=photos/1.jpg` names an image, `?key=AIza...` is a secret
# Characters that move a terminal's cursor or hide text: C0 and C1 except tabs and newlines, and characters that change
# the writing direction.
_CONTROL = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"


def mask_secrets(text: str) -> str:
    """Replace each password, token and signature in the URLs of `text` by `***`, for logs and files.

    These are a name with a password before a host, and the values of query parameters with telling names
    (`X-Goog-Signature`, `sig`, `access_token` and the like).
    """
    if "://" in text:
        text = re.sub(_USER, _mask_user, text)
    return re.sub(_SECRET, rf"\1{_MASK}", text) if "=" in text else text  # a library may print a path without its host


def url_identity(text: str) -> str:
    """Return a URL, or a text with URLs, without signatures and secrets, as files and builds refer to it.

    Parameters of signatures (`X-Goog-*`, `Signature`, `Expires`, `sig` and the like) and tokens are left out: a URL
    that is signed again stays the same. All other parameters stay. `key`, `code` and `session` may name an image or be
    a secret, so a digest replaces their values. It also replaces all secrets of URLs other than http and https, because
    names may contain a question mark there. A password is masked.
    """
    if "://" not in text:
        return text
    text = re.sub(_USER, _mask_user, text)
    if "?" not in text:
        return text
    if re.search(r"(?i)https?://", text):
        text = re.sub(r"\?([^#\s'\"<>`]*)", _without_signature, text)
    return re.sub(_SECRET, _digest_value, text)


def _without_signature(match: re.Match[str]) -> str:
    parts = re.split("([&;])", match[1])  # parameters and separators
    names = [part.partition("=")[0] for part in parts[::2]]
    lost = [
        bool(re.fullmatch(_OF_SIGNATURE, name))
        or bool(re.fullmatch(f"(?i){_SECRET_NAME}", name) and not re.fullmatch(_MAYBE_SECRET, name))
        for name in names
    ]
    if not any(lost):
        return match[0]
    beside = f"{_BESIDE_SIGNATURE}|{_BESIDE_SIG[4:]}" if "sig" in map(str.lower, names) else _BESIDE_SIGNATURE
    kept = [
        (mark, part)
        for mark, part, name, is_lost in zip(["", *parts[1::2]], parts[::2], names, lost, strict=True)
        if not is_lost and not re.fullmatch(beside, name)
    ]
    return "?" * bool(kept) + "".join(mark * bool(place) + part for place, (mark, part) in enumerate(kept))


def _digest_value(match: re.Match[str]) -> str:
    name, value = match[1], match[0][len(match[1]) :]
    if value.startswith(_MASK):  # an identity already
        return match[0]
    return f"{name}{_MASK}{hashlib.blake2b(value.encode('utf-8', 'surrogateescape'), digest_size=8).hexdigest()}"


def printable(text: str) -> str:
    """Return `text` for a terminal: without secrets, and with control characters escaped.

    Names in datasets, tables and tars come from strangers, and may contain sequences that a terminal would execute.
    """
    text = mask_secrets(text)
    if text.isprintable():
        return text
    return re.sub(_CONTROL, lambda match: match.group().encode("unicode_escape").decode(), text)


def _mask_user(match: re.Match[str]) -> str:
    scheme, user = match.groups()
    return f"{scheme}://{_MASK if ':' in user or scheme.lower() in _TOKEN_USERS else user}@"


def advised(verb: str, *words: str) -> str:
    """Return a `tpufeed` command for a message, quoted for a shell. Words in capitals are placeholders."""
    return shlex.join(["tpufeed", *verb.split(), *words])


def install_command(extra: str = "") -> str:
    """Return the pip command that installs this tpufeed, or adds an extra: from its clone, its wheel, or an index.

    Installers record the clone or the wheel (PEP 610). If it is gone, pip adds the extra by the name alone, from what
    is installed, and asks no index for tpufeed.
    """
    import json  # with `importlib.metadata` twice as slow to import as the rest of this file
    from importlib import metadata

    try:
        record = metadata.distribution("tpufeed").read_text("direct_url.json") or "{}"
    except metadata.PackageNotFoundError:  # a clone that is on the path of imports only
        record = json.dumps({"url": Path(__file__).parents[1].as_uri(), "dir_info": {"editable": True}})
    origin = json.loads(record)
    url = urlsplit(origin.get("url", ""))
    path = Path(unquote(url.path))
    is_there = url.scheme == "file" and (path.is_file() or (path / "pyproject.toml").is_file())
    editable = "-e " if is_there and origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}" + shlex.quote(f"{path if is_there else 'tpufeed'}{f'[{extra}]' if extra else ''}")


class TpufeedError(Exception):
    """Base of all errors that tpufeed raises on purpose. `exit_code` is the exit code of the command line.

    Its message is `printable`: it contains no secrets and no control characters of the URLs and names in it.
    """

    exit_code = 1

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(arg) if isinstance(arg, str) else arg for arg in args))


class UsageError(TpufeedError):
    """The request cannot be met. Nothing was changed."""

    exit_code = 2


class OptionError(UsageError, ValueError):
    """An option's value is not usable, or two options do not fit together."""


class UnknownSchemeError(UsageError, ValueError):
    """No store opens URLs of this scheme."""


class NoInputsError(UsageError, ValueError):
    """The source contains no image."""


class SourceError(UsageError, OSError):
    """The source cannot be listed."""


class DatasetNotFoundError(UsageError, FileNotFoundError):
    """There is no manifest at this URL, so there is no dataset."""


class DatasetExistsError(UsageError, FileExistsError):
    """The destination already holds a finished dataset."""


class DuplicateWriterError(UsageError, FileExistsError):
    """The destination belongs to a build with another plan."""


class MissingExtraError(UsageError, ImportError):
    """A package of an optional extra is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: {install_command(extra)}")
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[type["MissingExtraError"], tuple[str, str]]:
        """Survive pickling, see `ImageError`."""
        return type(self), (self.package, self.extra)


class StoreError(TpufeedError, OSError):
    """Bytes at a URL could not be read or written."""


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """There is no object of this name."""


class ObjectExistsError(StoreError, FileExistsError):
    """A create-only put met an object of the same name."""


class ObjectChangedError(StoreError):
    """The object is not the requested version: it was replaced or removed since then."""


class LinkError(StoreError):
    """There is a symbolic link in a dataset's folder, where links are not followed."""


class AccessError(StoreError, PermissionError):
    """Credentials are missing or expired, or do not allow this."""


class UnavailableError(StoreError, ConnectionError):
    """The store gave no answer, or only temporary failures, until a deadline. The object may or may not exist."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file of a dataset that could not be read, so it may or may not be damaged.

    Attributes:
        file: a shard or an index.
        message: the reason.
    """

    file: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}: {self.message}"


class DatasetUnreadableError(StoreError):
    """Files of a dataset could not be read. `unreadable` lists them. The other files are not damaged."""

    def __init__(self, message: str, unreadable: tuple[Unreadable, ...] = ()) -> None:
        super().__init__(message)
        self.unreadable = unreadable


class DamageError(TpufeedError, ValueError):
    """Stored bytes are not what was written."""


class RecordError(DamageError):
    """A record's framing, CRC or tf.train.Example is damaged."""


class ShardError(DamageError):
    """A shard's size or CRC differs from the manifest."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One damage of a dataset.

    Attributes:
        shard: the file, a shard or an index, or "manifest.json" if total counts are wrong.
        record: number of the record in the shard, or None if the damage does not concern a single record.
        byte: offset of the damage in the file. For a record, the offset of its first byte.
        message: what was found, and what was expected.
    """

    shard: str
    record: int | None
    byte: int | None
    message: str

    def __str__(self) -> str:
        record = "" if self.record is None else f", record {self.record}"
        byte = "" if self.byte is None else f", byte {self.byte}"
        return f"{self.shard}{record}{byte}: {self.message}"


class DatasetDamagedError(DamageError):
    """A dataset is not what was written. `damages` lists all damages, and the message names the first.

    `unreadable` lists the files that could not be read. They may or may not be damaged. `remedy`, which ends the
    message, has the commands that make the damaged files again.
    """

    def __init__(
        self,
        message: str,
        damages: tuple[Damage, ...] = (),
        unreadable: tuple[Unreadable, ...] = (),
        remedy: str = "",
    ) -> None:
        super().__init__(message)
        self.damages, self.unreadable, self.remedy = damages, unreadable, remedy


class ManifestError(DamageError):
    """A manifest is invalid."""


class ManifestVersionError(ManifestError):
    """A manifest has a format version that this tpufeed cannot read."""


class ImageError(TpufeedError, ValueError):
    """An image cannot be used.

    `reason` is one of unreadable, truncated, not_an_image, zero_bytes, unsupported, too_large, too_small, bad_mask,
    bad_box, other_pixels, bad_bands, too_few_frames, missing_frame, mixed_frames, changed_during_build, unreachable.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type["ImageError"], tuple[str, str]]:
        """Survive pickling: Exception would only restore the message."""
        return type(self), (self.reason, str(self))

    def at(self, place: str) -> "ImageError":
        """Return the error with its place: a file, frame or column."""
        return ImageError(self.reason, f"{place}: {self}")


class OpError(TpufeedError, RuntimeError):
    """An op raised, returned something other than an image of its input's shape, or is not deterministic."""


class BuildError(TpufeedError, RuntimeError):
    """A build could not finish. What it has finished stays, and the same command continues from there."""


class TaskError(BuildError):
    """A task failed for good."""


class TooManyRejectsError(BuildError):
    """More inputs were rejected than the build allows."""


class LoaderError(TpufeedError, RuntimeError):
    """A loader cannot continue: it was closed, a worker died or hangs, or its ranks would differ."""
