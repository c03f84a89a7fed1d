"""Scenes: images whose bands are in files of their own, which differ in the name of the band alone."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tpufeed.builds.item import ImageRef
from tpufeed.errors import OptionError
from tpufeed.images.pixel_format import MOST_CHANNELS
from tpufeed.sources.database import temporary_table
from tpufeed.sources.paths import in_utf8, is_image_name
from tpufeed.storage.store import BROKEN_LINK, ObjectInfo
from tpufeed.text import format_count, format_names

BAD_BANDS = "bad_bands"  # the reason of an image whose bands are not all there, or do not fit together


def parse_bands(
    bands: Sequence[str | int] | str, are_kept: bool, image: str | None
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the names of bands, or their numbers from 1: one of both is empty.

    Raises OptionError, also if images are not kept as they are, or if names come with a column of images.
    """
    if not are_kept:
        raise OptionError("bands chooses channels of images that are kept as they are. Pass --pixels keep as well")
    each = [str(band).strip() for band in (bands.split(",") if isinstance(bands, str) else bands)]
    numbers = tuple(int(band) for band in each if re.fullmatch(r"[1-9][0-9]{0,3}", band))
    if len(each) > MOST_CHANNELS:
        raise OptionError(f"bands names {len(each)} bands. An image has at most {MOST_CHANNELS}")
    if numbers and len(numbers) == len(each):
        return (), numbers
    if numbers or not all(each) or len(each) < 2 or len(set(each)) < len(each):
        raise OptionError(
            f"bands={','.join(each)!r}: expected the numbers of a file's bands, from 1, like 4,3,2, or the different "
            "names of bands in files of their own, like B02,B03,B04"
        )
    if image is not None:
        raise OptionError(f"bands={','.join(each)!r} names the files of an image. Leave --image out")
    return tuple(each), ()


@dataclass(frozen=True, slots=True)
class Scene(ObjectInfo):
    """An image in several files. Its name is theirs without the band, size and version are those of its first file.

    Attributes:
        file: its first file.
        others: its other files, in the order of the bands. Empty with a problem.
        problem: reason and message of a reject, or None.
    """

    file: str = ""
    others: tuple[ImageRef, ...] = ()
    problem: tuple[str, str] | None = None


def iter_scenes(
    files: Iterable[ObjectInfo], bands: Sequence[str], suffixes: tuple[str, ...], notes: list[str]
) -> Iterator[ObjectInfo]:
    """Yield files that are no images as they are, then the scenes of the images.

    No letter or digit is right before or after the name of a band: `tile_B02.tif`, `tile/B02.tif` and `B02/tile.tif`
    are of the scene `tile.tif`. If there are several names, the last one counts, and the others stay. The list is in
    a temporary file, so that a million scenes take no memory.

    Args:
        files: all files of a folder, in any order.
        bands: the names of the bands.
        suffixes: further suffixes of images.
        notes: gets a sentence on images without the name of a band.

    Raises:
        OptionError: no image has the name of a band, or a band is the name of a file.
        SourceError: a name is not UTF-8.
    """
    if any(is_image_name(band, suffixes) for band in bands):
        raise OptionError(f"bands={','.join(bands)!r}: name bands without the ending of their files, like B02,B03")
    last = re.compile(rf".*(?<![A-Za-z0-9])({'|'.join(map(re.escape, bands))})(?![A-Za-z0-9])", re.DOTALL)
    others, first = 0, ""
    with temporary_table("files(scene TEXT, band INT, name TEXT, bytes INT, version TEXT)") as database:
        for info in files:
            if not is_image_name(info.name, suffixes):
                yield info
            elif (found := last.match(info.name)) is None:
                others, first = others + 1, first or info.name
            else:
                before, after = info.name[: found.start(1)], info.name[found.end(1) :]
                if before.endswith("/") or not before:  # what joins it to the rest is cut, too
                    joined = after.startswith(("_", "-", " ", "/"))
                    before, after = (before, after[1:]) if joined else (before[:-1], after)
                else:
                    before = before[:-1]
                is_bare = after[0] == "." and f"/{before}".endswith("/")
                scene = f"{before}scene{after}" if is_bare else f"{before}{after}"
                line = scene, bands.index(found[1]), info.name, info.size_bytes, info.version
                with in_utf8():
                    database.execute("INSERT INTO files VALUES(?, ?, ?, ?, ?)", line)
        names = ", ".join(bands)
        if others and not database.total_changes:
            raise OptionError(
                f"no image has the name of a band ({names}) in its own, like {first}. Pass those of the files"
            )
        if others:
            said = f"{format_count(others, 'image')} without the name of a band ({names}) in their own"
            notes.append(f"{said} are left out, like {first}")
        lines = database.execute("SELECT * FROM files ORDER BY scene, band, name")
        for scene, found_files in itertools.groupby(lines, lambda line: line[0]):
            yield _scene_of(scene, [(bands[band], ImageRef(*rest)) for _, band, *rest in found_files], bands)


def _scene_of(name: str, files: Sequence[tuple[str, ImageRef]], bands: Sequence[str]) -> Scene:
    """Return the scene of some files, each with its band, in the order of these."""
    found, refs, problem = [band for band, _ in files], [file for _, file in files], None
    if missing := [band for band in bands if band not in found]:
        problem = f"it has no file of {format_names(missing)}, only {format_names([file.file for file in refs])}"
    elif len(files) > len(bands):
        several = next(band for band in bands if found.count(band) > 1)
        same = format_names([file.file for band, file in files if band == several])
        problem = f"the band {several} has several files: {same}"
    elif broken := [file.file for file in refs if file.version == BROKEN_LINK]:
        problem = f"{broken[0]} is a link to nothing"
    said, others = (BAD_BANDS, problem) if problem else None, () if problem else tuple(refs[1:])
    return Scene(name, refs[0].bytes, refs[0].version, file=refs[0].file, others=others, problem=said)
