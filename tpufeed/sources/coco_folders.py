"""Find the COCO files of several splits, named by the user or exported by another tool, and the folders of images."""

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tpufeed.dataset.naming import SPLIT_OF_WORD, check_split_name, splits_mentioned
from tpufeed.errors import OptionError, TpufeedError
from tpufeed.sources.inputs import Files
from tpufeed.sources.paths import is_hidden, parent_of, resolve
from tpufeed.sources.source import Folder, Place, listing
from tpufeed.storage.store import ObjectInfo, Store, open_store

_TRIED_IMAGES = 16
_LEVELS = 3
_MOST_FOLDERS = 1000  # to search for the images
_SHOWN = 3
# Words in the names of folders and files, without a plural's s.
_ANNOTATIONS = frozenset(("annotation", "annot", "anno", "ann", "label", "json", "gt"))
_IMAGES = frozenset(
    ("image", "img", "jpegimage", "jpeg", "jpg", "png", "photo", "picture", "pic", "frame", "data", "raw", "rgb")
)
_GENERAL = _IMAGES | _ANNOTATIONS | {"coco", "instance", "keypoint", "person", "default", "result"}
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)=(.+)", re.DOTALL)
_ROBOFLOW = "_annotations.coco.json"
_INSTANCES = re.compile(r"annotations/(instances_[^/]+)\.json")
# Folders beside `annotations`, without digits and a plural's s. Others may be classes.
_BESIDE = frozenset(("annotation", "image", "img", "label", "mask", "unlabeled"))


def parse_named(text: str) -> list[tuple[str, str]]:
    """Return splits and values of `train=a,val=b`, or nothing if the text has another form."""
    found = [_NAMED.fullmatch(part) for part in re.split(r",(?=[A-Za-z0-9][A-Za-z0-9_.-]*=)", text)]
    return [(each[1], each[2]) for each in found if each is not None] if all(found) else []


def named_splits(url: str) -> list[tuple[str, Store, str]]:
    """Return split, folder and name of each file in `train=a.json,val=b.json`, or nothing if `url` has another form.

    Raises:
        OptionError: a split cannot be called so.
    """
    found = parse_named(url)
    if not found or not all(file.lower().endswith(".json") for _, file in found) or Path(url).exists():
        return []
    places = [(check_split_name(split), *file.rpartition("/")) for split, file in found]
    return [(split, open_store(folder or slash or "."), name) for split, folder, slash, name in places]


def find_splits(folder: Folder) -> Place | None:
    """Return the place of the COCO files in a folder that Roboflow, CVAT or COCO itself made.

    Roboflow's folders of splits hold `_annotations.coco.json` beside the images. Others have `annotations` with
    `instances_train2017.json` and so on, beside folders of images. Returns None if a folder may be a class.
    """
    store, folders = folder.store, folder.folders
    if "::" in store.url:  # folders in a zip have URLs of another form
        return None
    if folders and all(name.lower() in SPLIT_OF_WORD for name in folders):
        infos = {name: store.stat(f"{name}/{_ROBOFLOW}") for name in folders}
        files = [(SPLIT_OF_WORD[name.lower()], info) for name, info in infos.items() if info is not None]
        missing = [name for name, info in infos.items() if info is None]
        note = f"{', '.join(missing)} in {store.url} has no {_ROBOFLOW}, and is left out" if missing else ""
        return _place_of(folder, files, note)
    others = (re.sub("[0-9_]", "", name.lower()).removesuffix("s") for name in folders if not splits_mentioned([name]))
    if "annotations" not in folders or not _BESIDE.issuperset(others):
        return None
    objects = store.iter_objects("annotations")
    named = [(match[1], info) for info in objects if (match := _INSTANCES.fullmatch(info.name))]
    inside = [f"images/{name}" for name in open_store(posixpath.join(store.url, "images")).iter_folders()]
    splits = [said.pop() if len(said := splits_mentioned([name])) == 1 else None for name, _ in named]
    if len(named) > 1 and (None in splits or len(set(splits)) < len(named)):
        return None
    # Ultralytics' archive has the annotations of val only.
    missing = [
        name for name in (*folders, *sorted(inside)) if None not in splits and splits_mentioned([name]) - {*splits}
    ]
    note = f"{', '.join(missing)} in {store.url}: there is no annotations/instances_*.json of that name. It is left out"
    places = list(zip(splits, (info for _, info in named), strict=True))
    return _place_of(folder, places, note if missing else "")


def _place_of(folder: Folder, files: Sequence[tuple[str | None, ObjectInfo]], note: str) -> Place | None:
    """Return the place of some files, with a part for each in its own folder, or None if there are none."""
    parts = list[Place]()
    for split, info in sorted(files, key=lambda file: file[1].name):
        inner, _, name = info.name.rpartition("/")
        store = open_store(posixpath.join(folder.store.url, inner))
        parts.append(Place(store, [replace(info, name=name)], split=split, why=f"it has {name}"))
    notes = [note] if note else []
    return Place(folder.store, (), folder, parts=parts, notes=notes, why=parts[0].why) if parts else None


def find_images(where: str, names: Sequence[str], store: Store, folder: str | None) -> Store:
    """Find the folder that the `names` of images are relative to.

    `store` has the file at `where` that names them. A user may name the `folder`.

    It is the folder of the file, if the images are there, else a folder inside it, or inside one of these that is
    called `images`. COCO's own files are in `annotations`, next to `train2017` and so on. From a folder of such a name
    the search starts one folder higher. Annotation tools give the images of every project the same names. So a folder
    has to fulfil all of these:
      - It holds all images of the probe, or its name is like the file's.
      - Its name does not mention another split.
      - No other folder holds them as well.
      - Its name is usual for images, or it is the only folder there.

    Raises:
        OptionError: there is no such folder, or several are possible. Says what to pass.
        UnavailableError, AccessError: the store does not answer, or refuses.
    """
    if folder is not None:
        return open_store(folder)
    names = names[:: max(1, len(names) // _TRIED_IMAGES)][:_TRIED_IMAGES]
    if all(file.startswith("/") or "://" in file for file in (resolve(store.url, name) for name in names)):
        return store  # all names are absolute
    tops, parent = [store.url], parent_of(store.url)
    if parent and not _ANNOTATIONS.isdisjoint(_kinds(store.url.removeprefix(parent))):
        tops.append(parent)
    with listing(f"the images of {where} cannot be looked up"):
        counts, alone = _look_around(tops, names)
    found, stem = {url: count for url, count in counts.items() if count}, where.rpartition("/")[2].rpartition(".")[0]
    if found.get(store.url) == len(names):  # they are relative to their file
        return store

    own = splits_mentioned([stem])
    splits = {url: splits_mentioned([posixpath.basename(url)]) for url in counts.keys() - tops}
    of_another_split = {url for url, said in splits.items() if len(said) == len(own) == 1 and said != own}

    def is_meant(url: str) -> bool:
        """Return true if a folder's name fits the file's: `val2017` and `instances_val2017`, `val` and `images_val`."""
        words, said = _words(posixpath.basename(url)) - _GENERAL, splits.get(url, set())
        return url in tops or (bool(words) and words <= _words(stem)) or (len(said) == 1 and said == own)

    fit = [url for url in found if url not in of_another_split]
    whole, meant = [url for url in fit if found[url] == len(names)], [url for url in fit if is_meant(url)]
    if len(meant) == 1 and set(whole) <= set(meant):
        return open_store(meant[0])
    rival = next((url for url in counts if url not in found and url not in tops and is_meant(url)), None)
    if len(fit) == len(whole) == 1 and rival is None:
        called = posixpath.basename(whole[0])
        if whole[0] in alone or splits_mentioned([called]) or not _IMAGES.isdisjoint(_kinds(called)):
            return open_store(whole[0])
    like = f"images like {names[0]} are in"
    if len(fit) > 1:
        why = f"{like} {' and in '.join((whole if len(whole) > 1 else fit)[:_SHOWN])}"
    elif whole:
        other = f", and {rival} has the name of the file but does not hold them" if rival else ""
        why = f"{like} {whole[0]}, but nothing tells that they belong to this file{other}"
    elif fit:
        why = f"{like} {fit[0]}, but only {found[fit[0]]} of {len(names)} that were looked up"
    elif found:
        why = f"{like} {next(iter(found))}, which has the name of another split"
    else:
        why = f"no image like {names[0]} is in the {len(counts)} folders around {store.url}"
    raise OptionError(f"{where}: {why}. Pass the folder that its file names are relative to: --image DIR")


def _look_around(tops: Sequence[str], names: Sequence[str]) -> tuple[dict[str, int], set[str]]:
    """Return the number of images in each folder around a file, and those folders that have no other beside them.

    `tops` are its own folder, and the one above it if that may hold its images.
    """
    counts, alone, roots = dict[str, int](), set[str](), list(tops)
    for level in range(_LEVELS):
        roots = roots[: _MOST_FOLDERS - len(counts)]
        for url in roots:
            infos = stats(Files(url), names, partial(resolve, url))
            counts[url] = sum(isinstance(info, ObjectInfo) for _, info in infos)
            if counts[tops[0]] == len(names):
                return counts, alone
        if len(names) in counts.values():
            break
        outer, roots = [url for url in roots if not level or url.rpartition("/")[2].lower() == "images"], []
        for url in outer:
            inner = (name for name in sorted(open_store(url).iter_folders()) if not is_hidden(name))
            urls = [each for name in inner if (each := f"{url.rstrip('/')}/{name}") not in counts]
            alone.update(urls if len(urls) == 1 else ())
            roots += urls
    return counts, alone


def stats(
    files: Files, names: Sequence[str], place: Callable[[str], str]
) -> list[tuple[str, ObjectInfo | TpufeedError | None]]:
    """Return each name of an image and the state of its file: with slashes, if only such a file is there.

    `place` returns the file that a name means, as `resolve` does.
    """
    found = list(zip(names, files.stats([place(name) for name in names]), strict=True))
    turned = {
        at: posixpath.normpath(name.replace("\\", "/"))  # was written on Windows
        for at, (name, info) in enumerate(found)
        if "\\" in name and "://" not in name and not isinstance(info, ObjectInfo)
    }
    infos = files.stats([place(name) for name in turned.values()])
    for (at, name), info in zip(turned.items(), infos, strict=True):
        if isinstance(info, ObjectInfo):
            found[at] = name, info
    return found


def _words(name: str) -> set[str]:
    return {word.removesuffix("s") for word in re.findall("[a-z0-9]+", name.lower())}


def _kinds(name: str) -> set[str]:
    return _words(re.sub("[0-9]+", " ", name))
