"""Open the store of a URL; backends are imported on first use."""

import os
import re
from pathlib import Path

from tpufeed.errors import OptionError, UnknownSchemeError
from tpufeed.storage.store import Store


def open_store(url: str | Path, follow: bool = True) -> Store:
    """Return the store at `url`: a path, `file://`, `memory://`, or any scheme that fsspec knows. Touches nothing.

    `zip::PATH` is what a zip holds.

    Args:
        url: where it is.
        follow: read through symbolic links below a local folder. A dataset is opened without: who gives it to us could
            have put a link to any file of ours into it.

    Raises:
        UnknownSchemeError: nothing opens this scheme.
        OptionError: it names no bucket, or is no text or path, as a list of URLs.
        MissingExtraError: its backend is not installed.
    """
    if not isinstance(url, str | os.PathLike):
        raise OptionError(
            f"one URL or path is wanted, like gs://bucket/flowers, not a {type(url).__name__}: {url!r:.80}"
        )
    text = str(url)
    if text.startswith("zip::") and "://" not in text:  # of a path, for which fsspec wants a scheme
        text = f"zip::file://{Path(text.removeprefix('zip::')).absolute()}"
    scheme = url_scheme(text)
    if "://" in text:
        text = scheme + text[len(scheme) :]
    if scheme == "file":
        from tpufeed.storage.local import LocalStore

        return LocalStore(text, follow)
    if scheme == "memory":
        from tpufeed.storage.memory import MemoryStore

        return MemoryStore(text)
    if scheme in ("gs", "gcs") and text.startswith(f"{scheme}://"):  # a chain as gs::... is fsspec's
        from tpufeed.storage.gcs import GcsStore

        return GcsStore(text)
    from fsspec.registry import known_implementations, registry

    if scheme not in known_implementations and scheme not in registry:
        raise UnknownSchemeError(
            f"{text}: nothing opens {scheme}:// URLs; give a local path, gs://, s3://, memory:// or another scheme "
            "that fsspec knows"
        )
    from tpufeed.storage.filesystem import FsspecStore

    return FsspecStore(text)


def url_scheme(url: str) -> str:
    """Return `gs` for gs://bucket/x, `file` for a path, `zip` for a chain of fsspec's as zip::gs://bucket/x.zip."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+._-]*)(::[A-Za-z0-9+._:-]+)?://", url)
    return match.group(1).lower() if match else "file"
