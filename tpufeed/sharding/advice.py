"""Warnings, as sentences: what the columns or folders of a source may not have been meant to become."""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tpufeed.dataset.schema import LABEL, FeatureSpec, further_columns
from tpufeed.sharding.folders import split_named, splits_mentioned
from tpufeed.sharding.tables import SUFFIXES

_SHOWN = 8
_SUFFIX_OF_MASKS = re.compile(r"[_ -](?:masks?|seg|segm|segmentation|labels?|gt|matte|trimap|annotations?)$")
_MASKS = frozenset(
    {"mask", "masks", "seg", "segm", "segmentation", "segmentations", "label", "labels", "annotation", "annotations"}
    | {"gt", "groundtruth", "target", "targets", "matte", "mattes", "trimap", "trimaps", "alpha"}
)
_WORD = re.compile("[a-z]+")
_NUMBERED = re.compile(r"[a-z]*[_ .-]*[0-9]+")


def iter_label_warnings(source: str, label: str, features: Sequence[FeatureSpec]) -> Iterator[str]:
    """About a dataset with these features that a table became without labels, though nobody asked for none.

    Args:
        source: as a URL.
        label: the option.
        features: of the dataset.
    """
    others = list(further_columns(features))
    labelled = any(spec.name == LABEL for spec in features)
    if label != "auto" or labelled or not others or not source.lower().endswith(SUFFIXES):
        return
    more = f" and {len(others) - _SHOWN:,} more" if len(others) > _SHOWN else ""
    yield (
        f"no labels: none of the columns {', '.join(others[:_SHOWN])}{more} is called label, class ...; give --label "
        "COLUMN, or --label none"
    )


def tar_label_warning(columns: Sequence[str], ignored_files: Mapping[str, int]) -> str:
    """Return what to say of tars without labels, though nobody asked for none.

    Args:
        columns: what the samples have besides their images.
        ignored_files: of the tars, by their endings.
    """
    if ignored_files.get(".cls"):
        way = "a key ends at the first dot of a name, so rename files like im.v0.cls to im_v0.cls"
    elif columns:
        way = f"give --label KEY, one of {_show(columns)}"
    else:
        way = "folders in a tar are no classes, so unpack it to have them"
    return f"no labels: no sample has a .cls; {way}, or say --label none"


def iter_tar_split_warnings(names: Sequence[str]) -> Iterator[str]:
    """About tars whose names say that they are of several splits, which all become train."""
    mentioned = sorted(set[str]().union(*map(splits_mentioned, names)))
    if len(mentioned) > 1:
        yield (
            f"tars are called like splits ({', '.join(mentioned)}), and all of them become train: shard those of each "
            "split apart, like 'train-*.tar'"
        )


def iter_split_warnings(splits: Sequence[str]) -> Iterator[str]:
    """About splits whose names differ by capitals only: other people's tools write one name in several ways."""
    names: dict[str, list[str]] = {}
    for name in splits:
        names.setdefault(name.lower(), []).append(name)
    for alike in names.values():
        if len(alike) > 1:
            yield f"{' and '.join(alike)} are {len(alike)} splits; where one is meant, give it one name in the source"


def iter_folder_warnings(
    source: str, splits: bool, classes: Sequence[str], nested: Iterable[tuple[str, str]]
) -> Iterator[str]:
    """About class folders that may be the folders of splits, or one folder around all others.

    Args:
        source: as a URL.
        splits: whether the class folders lie in folders of splits.
        classes: names of all class folders.
        nested: folders in class folders, as (class, folder).
    """
    folders = sorted({folder for _, folder in nested})
    mentioned = [name for name in classes if splits_mentioned(name)]
    if len(set[str]().union(*map(splits_mentioned, mentioned))) > 1 or any(split_named(label) for label, _ in nested):
        yield (
            f"classes are called like splits: {_show(mentioned)}; if they are splits, say --split-by folder, which "
            "makes every folder that holds images a split, with the classes inside"
        )
    elif len(classes) == 1:
        (name,) = classes
        way = "move them one folder up" if splits else f"shard {posixpath.join(source, name)}"
        inner = f"to have its folders ({_show(folders)}) as classes or splits, {way}; " if folders else ""
        yield (
            f"all images lie in one folder, {name}, and so are of one class; {inner}to take all images without labels, "
            "say --label none"
        )


def iter_mask_warnings(classes: tuple[str, str], some: Sequence[str], others: Iterable[str]) -> Iterator[str]:
    """About two class folders of which one may hold the masks of the other's images.

    Class folders may number their images alike. So names that are mere numbers count only where a folder is called like
    masks, or the endings differ.

    Args:
        classes: the names of both.
        some: paths of some images of the first class.
        others: paths of all images of the second, drawn from as long as it matters.
    """
    endings = {_stem(path): path.rpartition(".")[2].lower() for path in some}
    called = any(word in _MASKS for name in classes for word in _WORD.findall(name.lower()))
    left, counted = set(endings), 0
    for path in others:
        stem = _stem(path)
        if stem in left:
            left.discard(stem)
            alike = path.rpartition(".")[2].lower() == endings[stem]
            counted += called or not alike or _NUMBERED.fullmatch(stem) is None
            if 2 * counted >= len(endings):
                yield (
                    f"half of the images in {classes[0]} and {classes[1]}, or more, go by the same names in both, and "
                    "become two classes; where one folder holds the masks of the other's images, shard that of the "
                    "images alone, or a table with a column of images and one of masks"
                )
                return


def _show(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_SHOWN])}{' ...' if len(names) > _SHOWN else ''}"


def _stem(path: str) -> str:
    """The file's name in small letters, without its ending and what names of masks end in."""
    return _SUFFIX_OF_MASKS.sub("", path.rpartition("/")[2].rpartition(".")[0].lower())
