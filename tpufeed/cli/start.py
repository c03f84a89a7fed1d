"""`tpufeed` without a command: three beginnings, and commands for what the working folder holds."""

import os
from contextlib import suppress
from itertools import islice
from pathlib import Path

from tpufeed.cli.console import echo
from tpufeed.dataset.naming import MANIFEST, SPLIT_OF_WORD
from tpufeed.dataset.tfrecord_files import is_tfrecord_name
from tpufeed.errors import advised
from tpufeed.sources.paths import is_hidden, is_image_name

_BEGINNINGS = (
    "tpufeed feeds TPUs with images. Begin with what you have:",
    "",
    "  photos        tpufeed shard photos flowers --splits train=0.8,val=0.2",
    "  TFRecords     tpufeed adopt tfrecords",
    "  an idle TPU   tpufeed doctor flowers --tpu v5e-8",
)
_MOST_NAMES, _MOST_FOLDERS = 300, 20  # of a folder: it may have a million
_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")
_ANNOTATIONS = ("labels", "annotations")  # beside folders of images: all of it is one source


def print_start() -> None:
    """Print how to begin, in general and in the working folder."""
    commands = list[str]()
    with suppress(FileNotFoundError):  # the folder was removed
        commands = suggest(Path.cwd())
    found = [f"  {command}" for command in commands] or ["  it seems to hold no images, tars, TFRecords or datasets"]
    for line in (*_BEGINNINGS, "", "For this folder:", "", *found, "", "`tpufeed --help` lists all commands."):
        echo(line)


def suggest(folder: Path) -> list[str]:
    """Return commands for what a folder holds, by the first names in it and in the folders below."""
    names, folders = _first_names(folder)
    verb, _ = _find(folder, 0)
    below = {} if verb else {name: found for name in folders if (found := _find(folder / name, 2))[0]}
    sources = {name: found for name, found in below.items() if found[0] != "info"}
    made = f"../{folder.name or 'images'}-dataset"
    tables = [name for name in names if name.lower().endswith(_TABLES)]
    if tables and "shard" in (verb, *(found[0] for found in sources.values())):
        return [advised("shard", min(tables, key=lambda name: ("train" not in name.lower(), name)), made)]
    # Folders of classes, of splits, or of images beside their annotations are one source.
    parts = [name for name in sources if name.lower() in SPLIT_OF_WORD]
    classes = [name for name, found in sources.items() if found == ("shard", 0)]
    parts += classes if len(classes) > 1 else []
    parts += sources if any(name.lower() in _ANNOTATIONS for name in folders) else []
    verb = sources[parts[0]][0] if parts else verb
    found_here = {".": verb} if verb else {name: found[0] for name, found in below.items()}
    return [
        advised(verb, name, *([made if name == "." else f"{name}-dataset"] if verb == "shard" else []))
        for name, verb in found_here.items()
    ]


def _find(folder: Path, levels: int) -> tuple[str, int]:
    """Return the command for what a folder holds, or "", and how many levels below it the files are."""
    names, folders = _first_names(folder)
    if (folder / MANIFEST).is_file():
        return "info", 0
    if any(map(is_tfrecord_name, names)):
        return "adopt", 0
    if any(is_image_name(name) or name.lower().endswith(".tar") for name in names):
        return "shard", 0
    found = (_find(folder / name, levels - 1) for name in (folders if levels else ()))
    return next(((verb, level + 1) for verb, level in found if verb in ("adopt", "shard")), ("", 0))


def _first_names(folder: Path) -> tuple[list[str], list[str]]:
    """Return names of files and of folders. A folder that cannot be read has none."""
    try:
        with os.scandir(folder) as entries:
            first = [each for each in islice(entries, _MOST_NAMES) if not is_hidden(each.name)]
        folders = sorted(each.name for each in first if each.is_dir())
    except OSError:
        return [], []
    return [each.name for each in first if each.name not in folders], folders[:_MOST_FOLDERS]
