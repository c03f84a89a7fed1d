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
    "",
)
_MOST_NAMES, _MOST_FOLDERS = 300, 20  # of a folder: it may have a million
_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")
_ANNOTATIONS = ("labels", "annotations")  # beside folders of images: all of it is one source


def print_start() -> None:
    """Print how to begin, in general and in the working folder."""
    commands = list[str]()
    with suppress(FileNotFoundError):  # the folder was removed
        commands = suggest(Path.cwd())
    found = ["For this folder:", "", *(f"  {command}" for command in commands)]
    none = ["This folder seems to hold no images, tars, TFRecords or datasets."]
    for line in (*_BEGINNINGS, *(found if commands else none), "", "`tpufeed --help` lists all commands."):
        echo(line)


def suggest(folder: Path) -> list[str]:
    """Return commands for what a folder holds, by the first names in it and in the folders below."""
    made = f"../{folder.name or 'images'}-dataset"
    names, folders = _first_names(folder)
    verb, _ = _find(folder, 0)
    below = {} if verb else {name: found for name in folders if (found := _find(folder / name, 2))[0]}
    parts = {name: found for name, found in below.items() if found[0] != "info"}
    tables = sorted(name for name in names if name.lower().endswith(_TABLES))
    if tables and (verb == "shard" or any(found[0] == "shard" for found in parts.values())):
        return [advised("shard", next((name for name in tables if "train" in name.lower()), tables[0]), made)]
    classes = [name for name, found in parts.items() if found == ("shard", 0)]
    splits = [name for name in parts if name.lower() in SPLIT_OF_WORD]
    if parts and (len(classes) > 1 or splits or any(name.lower() in _ANNOTATIONS for name in folders)):
        verb, _ = parts[(splits or classes or [*parts])[0]]
    found_verbs = {".": verb} if verb else {name: found[0] for name, found in below.items()}
    return [
        advised(verb, name, *([made if name == "." else f"{name}-dataset"] if verb == "shard" else []))
        for name, verb in found_verbs.items()
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
