"""Do one task of `shard`: turn the bytes of its inputs' files into records."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import msgspec
import numpy as np

from tpufeed.builds.destination import Reject
from tpufeed.builds.digests import REJECTED, TAKEN, UNREAD, image_digest
from tpufeed.builds.item import Item
from tpufeed.builds.plan import Task
from tpufeed.builds.worker import Output, TaskContext, reach, run
from tpufeed.dataset.manifest import Markers, join_levels
from tpufeed.dataset.schema import FILENAME, FORMAT, LABEL, OWN_NAMES, TEXT, FeatureSpec, kaggle_values
from tpufeed.errors import BuildError, ImageError
from tpufeed.images.decoding import inverse_orientation
from tpufeed.images.frames import read_frames
from tpufeed.images.georeference import read_georeference
from tpufeed.images.header import sniff
from tpufeed.images.kept import Kept, read_bands
from tpufeed.images.masks import encode_mask, store_mask
from tpufeed.images.modern import readable_formats
from tpufeed.images.pixel_format import RGB8
from tpufeed.images.policy import StoredImage, store_image, stored_geometry
from tpufeed.images.restart import CAN_REWRITE
from tpufeed.sources.boxes import BoxMover
from tpufeed.sources.columns import decode_values
from tpufeed.sources.inputs import Files, files_of, iter_taken, place_of
from tpufeed.sources.options import GEOREFERENCE, MASKS, NODATA, ShardOptions
from tpufeed.sources.outlines import MaskDrawer
from tpufeed.storage.store import ObjectInfo
from tpufeed.tfrecord.example import Feature, encode_entries
from tpufeed.tfrecord.layout import pack_values

# An engine finds `run` and `reach` here.
__all__ = ["DROPPED", "TINY", "TURNED", "UNSURE", "SampleMaker", "ShardContext", "reach", "run"]

_SEEN_INPUTS = 4
_MOST_CLIP_BYTES = (1 << 31) - (1 << 20)  # protobuf holds no message of 2 GiB

# Odd cases of images with boxes: boxes outside the image or the square that "fit" cuts out, boxes that reached beyond
# the image, and, if the source says the sizes of images, boxes that refer to the stored image while the upright one is
# kept, or the other way round.
DROPPED = "box outside"
CLIPPED = "box clipped"
TINY = "boxes within one pixel"  # all boxes of the image: their numbers are probably shares of the sides
TURNED = "boxes turned by exif"
UNSURE = "exif, boxes not turned"  # upside down, mirrored or square: the sizes do not tell which image boxes refer to


def read_chosen(item: Item, data: Sequence[bytes], options: ShardOptions) -> Kept:
    """Return the image that `options.bands` choose or join. Raises as `read_bands`."""
    places = map(place_of, files_of(item)[: options.image_files])
    return read_bands([*zip(places, data, strict=False)], options.band_numbers)


class StoredSample(NamedTuple):
    """A sample as its record holds it."""

    image: StoredImage
    rest: dict[str, Feature]  # without image, label and sizes
    bytes: int  # of all its images
    odd: tuple[str, ...] = ()  # odd cases of its boxes and outlines, like one for each dropped or clipped box


class SampleMaker:
    """Makes samples by options and a schema. `box_format` is the format of boxes in the source.

    Attributes:
        labelled: samples have labels.
        several_labels: samples have lists of labels.
        names: names of the classes, in UTF-8.
    """

    def __init__(
        self,
        features: Sequence[FeatureSpec],
        class_names: Sequence[str],
        options: ShardOptions,
        box_format: str,
    ) -> None:
        label = next((spec for spec in features if spec.name == LABEL), None)
        self.labelled, self.several_labels = label is not None, label is not None and label.shape is None
        self.names = [name.encode() for name in class_names]
        self._options, self._files = options, options.image_files
        outlines, self._policy, self._format = options.outlines, options.images, features[0].pixels or RGB8
        made = {picture.name for picture in options.made}
        self._pictures = [spec for spec in features if spec.is_picture and spec.name not in made]
        self._columns = [spec for spec in features if spec.name not in OWN_NAMES and not spec.is_picture]
        has_boxes = any(spec.kind in ("boxes", "keypoints") for spec in features)
        self._boxes = BoxMover(features, box_format, options.boxes.outside) if has_boxes else None
        is_relative = self._boxes is not None and self._boxes.is_relative
        self._drawer = None if outlines is None else MaskDrawer(outlines, is_relative)

    def features(self, item: Item) -> dict[str, Feature]:
        """Return the features of an input except image, label, sizes, format and further images."""
        rest = {FILENAME: Feature("bytes", (item.path.encode(),))}
        if self.several_labels:
            rest[LABEL] = Feature("int64", item.labels)
            rest[TEXT] = Feature("bytes", [self.names[label] for label in item.labels])
        elif self.labelled:
            rest[TEXT] = Feature("bytes", (self.names[item.label] if item.label >= 0 else b"",))
        return rest | decode_values(item.columns, self._columns) if self._columns else rest

    def __call__(self, item: Item, data: Sequence[bytes]) -> StoredSample:
        """Return the sample of an input from the bytes of its files. Raises ImageError, naming file or column."""
        if self._format.frames:
            image = self._store_clip(item, data)
        else:
            chosen = None if self._options.bands is None else read_chosen(item, data, self._options)
            image = store_image(data[0], self._policy, item.path, self._format, chosen)
        rest = {FORMAT: Feature("bytes", (image.format.encode(),)), **self.features(item)}
        if self._options.georeference:
            rest[self._options.name_of(GEOREFERENCE)] = Feature("bytes", (read_georeference(data[0]).encode(),))
        if not self._pictures and self._boxes is None and self._policy.nodata == "keep":
            return StoredSample(image, rest, len(image.data))
        geometry, size = stored_geometry(image, self._policy), len(image.data)
        odd = tuple[str, ...]()
        if self._policy.nodata == "mask":
            empty = np.zeros(image.source, np.uint8) if image.nodata is None else image.nodata
            mask = encode_mask(geometry.warp(empty, 0), "mask")
            rest[NODATA], size = Feature("bytes", (mask,)), size + len(mask)
        if self._boxes is not None:
            said, of_source = item.pixels or image.source, geometry
            if item.pixels is not None:
                said, turn, odd = self._find_turn(item.pixels, image)
                odd = odd if self._boxes.has_any(rest) else ()
                of_source = geometry if turn == 1 else stored_geometry(image, self._policy, turn)
            rest, kept, clipped = self._boxes.move(rest, said, of_source)
            odd += (DROPPED,) * int(len(kept) - kept.sum()) + (CLIPPED,) * clipped
            odd += (TINY,) * self._boxes.are_tiny(rest)
            if self._drawer is not None:
                drawn, of_outlines = self._drawer.draw(item, kept, said)
                mask = encode_mask(of_source.warp(drawn, 0), "mask")
                rest[MASKS], size, odd = Feature("bytes", (mask,)), size + len(mask), odd + of_outlines
        pictures = zip(self._pictures, item.images[self._files - 1 :], data[self._files :], strict=True)
        for spec, file, part in pictures:
            where = place_of(file)
            try:
                if spec.kind == "image":
                    stored = store_image(part, self._policy, where).data
                else:
                    stored = store_mask(part, "mask" if spec.kind == "mask" else "depth", geometry)
            except ImageError as error:
                raise error.at(f"{spec.name!r}, {where}") from error
            rest[spec.name], size = Feature("bytes", (stored,)), size + len(stored)
        return StoredSample(image, rest, size, odd)

    def _store_clip(self, item: Item, data: Sequence[bytes]) -> StoredImage:
        """Return a clip from the file of each frame, or from one file with all. Its `data` is a list of images.

        Raises:
            ImageError: as for an image, too_few_frames, or mixed_frames.
            MissingExtraError: a package that keeps its values is not installed.
        """
        policy, pixels = self._policy, self._format.frame
        files, frames = [place_of(file) for file in files_of(item)], cast(Sequence[bytes | Kept], data)
        if is_animated := len(data) == 1:
            kind, keeps = sniff(data[0]), policy.pixels == "keep"
            frames = read_frames(data[0], policy.frames or 0, policy.frame_stride, keeps)
            files = [f"frame {number} of the clip" for number in range(len(frames))]
            if kind in ("gif", "webp"):
                if pixels != RGB8:
                    said = f"its frames are {RGB8.of_images}, and those of the dataset are {pixels}"
                    raise ImageError("other_pixels", said)
                policy = replace(policy, pixels="rgb8")
            if kind == "webp" and policy.encode not in ("png", "webp"):  # as of images that are encoded again
                policy = replace(policy, encode="jpeg")
        images = list[StoredImage]()
        for name, frame in zip(files, frames, strict=True):
            part, kept = (b"", frame) if isinstance(frame, Kept) else (frame, None)
            try:
                image = store_image(part, policy, name, pixels, kept)
            except ImageError as error:
                raise error.at(name) from error
            if "animated" in image.odd:
                raise ImageError("unsupported", f"{name} was taken for one frame, by its number, and has several")
            images.append(image)
        first, shapes = images[0], [f"{image.width}x{image.height}x{image.channels}" for image in images]
        for name, shape in zip(files, shapes, strict=True):
            if shape != shapes[0]:
                raise ImageError("mixed_frames", f"{name} has {shape} values, and the first frame {shapes[0]}")
        packed = pack_values(image.data for image in images)
        if len(packed) >= _MOST_CLIP_BYTES:
            raise ImageError("too_large", f"the frames take {len(packed):,} bytes, and a record holds less than 2 GiB")
        levels = [image.levels for image in images if image.levels is not None]
        return replace(
            first,
            data=packed,
            kept=not is_animated and all(image.kept for image in images),
            odd=tuple(dict.fromkeys(case for image in images for case in image.odd)),
            mended=any(image.mended for image in images),
            added_bytes=sum(image.added_bytes or 0 for image in images) if first.added_bytes is not None else None,
            levels=(min(low for low, _ in levels), max(high for _, high in levels)) if levels else None,
        )

    def _find_turn(self, said: tuple[int, int], image: StoredImage) -> tuple[tuple[int, int], int, tuple[str, ...]]:
        """Return the size that boxes refer to, the orientation that turns it to the image in the file, and odd cases.

        Boxes in shares of the sides fit an image of `said` size after it was scaled.

        Raises:
            ImageError: bad_box: the source means an image of another size.
        """
        orientation, turned = image.orientation, image.source[::-1]
        is_relative = self._boxes is not None and self._boxes.is_relative
        if said == image.source or (said != turned and is_relative and _is_scaled(said, image.source)):
            is_told = orientation == 1 or (orientation >= 5 and said[0] != said[1])
            return image.source, 1, () if is_told else (UNSURE,)
        if orientation >= 5 and (said == turned or (is_relative and _is_scaled(said, turned))):
            turn = orientation if self._policy.exif == "apply" else inverse_orientation(orientation)
            return turned, turn, (TURNED,)
        (height, width), (there, across) = said, image.source
        scale = f" ({across / width:.4g} times)" if width and height * across == width * there else ""
        raise ImageError(
            "bad_box",
            f"the width and height in the source say that boxes refer to an image of {width}x{height} pixels, and the "
            f"file has {across}x{there}{scale}. Give the images that the boxes refer to, or correct the source. If a "
            "table has these for something else, rename the columns",
        )


def _is_scaled(size: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return true if one size is the other one scaled, with sides rounded."""
    return abs(size[0] * other[1] - size[1] * other[0]) <= max(sum(size), sum(other))


@dataclass(frozen=True, slots=True)
class ShardContext(TaskContext):
    """Context that all tasks of a `shard` share.

    Attributes:
        options: the options of the build.
        modern: the formats of `images.modern` that can be read where the build was started.
    """

    options: ShardOptions
    modern: frozenset[str] = frozenset()

    def check(self) -> None:
        """Raise BuildError on a host that would store other bytes than the other hosts of the build."""
        images = self.options.images
        if (images.restart_markers or images.encode == "dct") and not CAN_REWRITE:
            gives = "makes DCT images of JPEGs" if images.encode == "dct" else "gives kept JPEGs restart markers"
            raise BuildError(
                f"tpufeed was installed here without its C extension, but this build {gives}. Install it from a wheel, "
                "or with a C compiler, or begin the build with encode='exact'"
            )

    def write(self, task: Task, output: Output) -> None:
        """Write the images of the task's inputs by the policy."""
        header, files, (writer,) = self.header, Files(self.header.base), output.writers
        make = SampleMaker(header.features, header.class_names, self.options, header.listed.box_format)
        keys = {spec.name: spec.key for spec in header.features}
        joined = self.options.image_files
        rewritten, added_bytes, unmarked, digests = 0, 0, Counter[str](), bytearray()
        with closing(iter_taken(files, task.inputs, make)) as inputs:
            for item, data, sample in inputs:
                digests += REJECTED if isinstance(sample, ImageError) else TAKEN
                digests += image_digest(b"".join(data[:joined])) if data else UNREAD
                if isinstance(sample, ImageError):
                    if sample.reason == "unsupported" and (self.modern - readable_formats()) & set(map(sniff, data)):
                        raise BuildError(
                            f"{item.path} can be read where the build was started, but not on this host: {sample}"
                        )
                    output.reject(Reject(item.path, sample.reason, str(sample)))
                    continue
                image = sample.image
                stored = "" if image.kept else ", mended" if image.mended else ", encoded anew"
                output.images[image.format + stored] += 1
                output.odd.update((*image.odd, *sample.odd))
                output.heights[image.height] += 1
                output.widths[image.width] += 1
                output.levels = join_levels(output.levels, image.levels or msgspec.UNSET)
                if image.added_bytes is not None:
                    rewritten, added_bytes = rewritten + 1, added_bytes + image.added_bytes
                elif image.unmarked:
                    unmarked[image.unmarked] += 1
                ints: tuple[int, ...] = (image.height, image.width, image.channels)
                labels: Sequence[int] = ()
                if make.several_labels:
                    labels = [int(label) for label in sample.rest[LABEL].values]
                elif make.labelled:
                    labels, ints = (item.label,), (item.label, *ints)
                rest = sample.rest
                if header.are_counted:
                    rest |= kaggle_values(make.names, labels if make.labelled else None, image.height, image.width)
                entries = encode_entries({keys[name]: value for name, value in rest.items()})
                writer.add(image.data, ints, entries)
                output.add(images=1, size=sum(file.bytes for file in files_of(item)), labels=set(labels))
        if self.options.images.restart_markers or self.options.images.encode == "dct":
            output.markers = Markers(rewritten, added_bytes, dict(unmarked))
        output.digests, output.retries = bytes(digests), files.retries

    def see(self, task: Task) -> dict[str, str]:
        """Return the versions of the first files of a task. Raises if their store does not answer, or refuses."""
        first = [item for item in task.inputs if item.problem is None][:_SEEN_INPUTS]
        names = list(dict.fromkeys(file.file for item in first for file in files_of(item)))
        return {
            name if "://" in name or name.startswith("/") else f"{self.header.base.rstrip('/')}/{name}": info.version
            for name, info in zip(names, Files(self.header.base).stats(names), strict=True)
            if isinstance(info, ObjectInfo)  # others are rejected on every host
        }
