"""FFCV over a .beton file, as its documentation advises: os_cache, random order. A setting is THREADS.

Windows are its own, of the same rule. Its writer would encode photos anew; the field here stores the very bytes. The
batches that it hands over lie in a ring of its own and are overwritten later.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
from ffcv.fields.rgb_image import IMAGE_MODES
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip
from ffcv.writer import DatasetWriter
from simplejpeg import decode_jpeg_header

from benchmarks.peers import BATCH, SCALE, SIZE, Source, labelled_files

SETTINGS = dict.fromkeys(("jpeg", "small", "presized", "raw"), "2")

_EPOCHS_IN_ONE = 50  # what happens between epochs is no part of the figure


class _StoredJpeg(RGBImageField):
    def encode(self, destination: Any, data: bytes, malloc: Any) -> None:
        destination["mode"] = IMAGE_MODES["jpg"]
        destination["height"], destination["width"] = decode_jpeg_header(data)[:2]
        destination["data_ptr"], storage = malloc(len(data))
        storage[:] = np.frombuffer(data, np.uint8)


class _Photos:
    def __init__(self, source: Source) -> None:
        self.photos = labelled_files(source.files)

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        file, label = self.photos[index]
        return file.read_bytes(), label


class _Pixels:
    def __init__(self, source: Source) -> None:
        self.images, self.labels = (
            np.load(source.files / f"{name}.npy", mmap_mode="r") for name in ("images", "labels")
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.array(self.images[index]), int(self.labels[index])


def prepare(source: Source) -> None:
    raw = source.work == "raw"
    fields = {"image": RGBImageField("raw") if raw else _StoredJpeg("jpg"), "label": IntField()}
    writer = DatasetWriter(str(source.folder / "all.beton"), fields, num_workers=2)
    writer.from_indexed_dataset(_Pixels(source) if raw else _Photos(source))


def batches(source: Source, setting: str) -> Iterator[Any]:
    if source.work == "raw":
        image, count = [SimpleRGBImageDecoder()], len(_Pixels(source))
    else:
        image = [RandomResizedCropRGBImageDecoder((SIZE, SIZE), scale=SCALE), RandomHorizontalFlip()]
        count = len(_Photos(source))
    loader = Loader(
        str(source.folder / "all.beton"),
        BATCH,
        num_workers=int(setting),
        os_cache=True,
        order=OrderOption.RANDOM,
        indices=np.tile(np.arange(count), _EPOCHS_IN_ONE),
        pipelines={"image": image, "label": [IntDecoder()]},
        custom_fields={"image": RGBImageField},
    )
    while True:
        yield from loader
