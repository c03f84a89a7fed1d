"""Read a folder of clips: animated files, and folders of numbered images, each of which is one clip."""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import groupby, islice

import msgspec

from tpufeed.builds.item import ImageRef, Item
from tpufeed.errors import ImageError, SourceError
from tpufeed.images.frames import choose_frames
from tpufeed.images.header import read_header
from tpufeed.images.kept import read_kept
from tpufeed.images.policy import Images
from tpufeed.sources.database import temporary_table
from tpufeed.sources.folder import FolderSource
from tpufeed.sources.inputs import Files, iter_read
from tpufeed.sources.options import ShardOptions
from tpufeed.sources.paths import KEPT, in_utf8, is_image_name
from tpufeed.sources.source import Found, Place
from tpufeed.storage.store import BROKEN_LINK, ObjectInfo
from tpufeed.text import format_names

_NEVER_FRAMES, _MAYBE_ANIMATED = (".gif",), (".png", ".webp", ".tif", ".tiff")
_NUMBERED = re.compile(r"(.*/)?([^/]*?)([0-9]+)(\.[^./]+)")  # folder, start, number and ending of a file's name
_PEEKED = 16  # folders, of which the first file tells whether it is a clip itself


class ClipsSource(FolderSource):
    """Clips below a folder. A folder of numbered images counts as one file, so its class is the folder above."""

    what = "folder of clips"

    def __init__(self, place: Place, options: ShardOptions) -> None:
        super().__init__(place, options)
        self._iter_files = self._iter_clips
        self._images, self._clips = options.images, dict[str, Item]()
        self._not_frames: tuple[str, ...] = _NEVER_FRAMES

    def iter_items(self, found: Found) -> Iterator[Item]:
        first = ""  # without a folder above it
        for item in super().iter_items(found):
            clip = self._clips.pop(item.path, item)
            first = first or (clip.path if clip is not item and item.label_name is None else "")
            problem = item.problem or clip.problem
            yield msgspec.structs.replace(clip, label_name=item.label_name, split=item.split, problem=problem)
        if first and self._options.label != "none":
            found.notes.append(
                f"the images in {first} are one clip without a class, as no folder of a class is above it. If "
                f"{first} is a class, move each of its clips into a folder of its own"
            )

    def _iter_clips(self) -> Iterator[ObjectInfo]:
        """Yield the files, sorted by a temporary file: stores list a folder in any order.

        A folder of numbered images is one file beside it, with the ending of its images. `_clips` has its clip.
        """
        every = "SELECT * FROM files ORDER BY folder, name"
        with temporary_table("files(folder TEXT, name TEXT, bytes INT, version TEXT)") as database:
            with in_utf8():
                infos = self._folder.iter_objects()
                rows = ((each.name.rpartition("/")[0], each.name, each.size_bytes, each.version) for each in infos)
                database.executemany("INSERT INTO files VALUES(?, ?, ?, ?)", rows)
            firsts = (frames[0] for _, frames in self._iter_folders(database.execute(every)) if frames)
            if self._are_animated([*islice((each for each in firsts if _is(each, _MAYBE_ANIMATED)), _PEEKED)]):
                self._not_frames = _NEVER_FRAMES + _MAYBE_ANIMATED
            for others, frames in self._iter_folders(database.execute(every)):
                yield from others
                if frames:
                    place, slash, _ = frames[0].name.rpartition("/")
                    if not slash:
                        raise SourceError(
                            f"{self._store.url}: images with numbers, like {frames[0].name}, lie in the source itself. "
                            "Each folder of them is a clip: give the folder above"
                        )
                    name = f"{place}.{frames[0].name.rpartition('.')[2]}"
                    self._clips[name] = to_clip(place, frames, self._images)
                    yield ObjectInfo(name, frames[0].size_bytes, frames[0].version)

    def _iter_folders(
        self, rows: Iterator[tuple[str, str, int, str]]
    ) -> Iterator[tuple[list[ObjectInfo], list[ObjectInfo]]]:
        """Yield for each folder its other files, and its images if one of them has a number."""
        suffix = KEPT if self._images.pixels == "keep" else ()
        for _, group in groupby(rows, lambda row: row[0]):
            infos = [ObjectInfo(*row[1:]) for row in group]
            frames = [each for each in infos if is_image_name(each.name, suffix) and not _is(each, self._not_frames)]
            if not any(_NUMBERED.fullmatch(each.name) for each in frames):
                frames = []
            names = {each.name for each in frames}
            yield [each for each in infos if each.name not in names], frames

    def _are_animated(self, files: Sequence[ObjectInfo]) -> bool:
        """Return true if these files with numbers are clips themselves. Raises SourceError if only some are."""
        items, said = [Item(each.name, each.size_bytes, each.version) for each in files], dict[bool, str]()
        with closing(iter_read(Files(self._store.url), items)) as read:
            for item, data in read:
                with suppress(ImageError):  # the build will say what is wrong with it
                    if not isinstance(data, ImageError):
                        kept = read_kept(data[0]) if self._images.pixels == "keep" else None
                        header = read_header(data[0]) if kept is None else kept.header
                        said.setdefault("animated" in header.odd, item.path)
        if len(said) > 1:
            raise SourceError(
                f"{self._store.url}: {said[True]} has several frames, and {said[False]} is taken for a frame, as its "
                "name ends in a number. Move animated files and folders of frames apart"
            )
        return True in said


def _is(info: ObjectInfo, endings: tuple[str, ...]) -> bool:
    return info.name.lower().endswith(endings)


def to_clip(place: str, files: Sequence[ObjectInfo], images: Images) -> Item:
    """Return the clip of the images in a folder, with why it is rejected if their numbers do not make one."""
    matches = [(_NUMBERED.fullmatch(info.name), info) for info in files]
    numbered = {int(match[3]): info for match, info in matches if match}
    names = {f"{match[2]}*{match[4]}" if match else info.name.rpartition("/")[2] for match, info in matches}
    twice = next((info.name for match, info in matches if match and numbered[int(match[3])] is not info), None)
    first, last = min(numbered), max(numbered)
    missing = next((number for number in range(first, last) if number not in numbered), None)
    broken = next((info.name for info in files if info.version == BROKEN_LINK), None)
    problem, chosen = None, [0]
    if len(names) > 1:
        problem = "mixed_frames", f"its images are {format_names(sorted(names))}. Keep one row of numbers in a folder"
    elif twice is not None:
        problem = "mixed_frames", f"another image has the number of {twice}. Remove one of them"
    elif missing is not None:
        problem = "missing_frame", f"there is no frame {missing}, and frames up to {numbered[last].name}"
    elif broken is not None:
        problem = "unreadable", f"{broken} is a link to nothing"
    else:
        try:
            chosen = choose_frames(len(numbered), images.frames or 0, images.frame_stride)
        except ImageError as error:
            problem = error.reason, f"the folder has {error}"
    head, *rest = (
        ImageRef(info.name, info.size_bytes, info.version) for info in (numbered[first + at] for at in chosen)
    )
    return Item(place, head.bytes, head.version, file=head.file, problem=problem, images=tuple(rest))
