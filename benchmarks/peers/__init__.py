"""What `feed.py` measures, one loader a file, each run under the Python that has it (`scripts/setup-peers`).

A loader's file has

    SETTINGS             what it is set to for each kind of work that it can do, the best of those tried on 2 cores:
                         {"jpeg": "pil-2", ...}. What has no raw format worth the name leaves "raw" out.
    prepare(source)             puts the samples into `source.folder` in the loader's own format; optional
    batches(source, setting)    batches `(images, labels)` for ever

Images are uint8 NHWC, contiguous, 128 of 224x224x3 in an array or tensor of their own; labels are integers. All draw
crops from one distribution, `pixels.random_window` or the loader's own op of the same rule, and flip every other one.
"""

import os
import random
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BATCH", "SCALE", "SIZE", "Source", "labelled_files", "other_form"]

BATCH = 128
SIZE = 224
# Of a window's area to the image's: `peers.measure` sets the variable, which processes of loaders inherit.
SCALE = (0.05, 0.3) if os.environ.get("PEERS_WORK") == "small" else (0.08, 1.0)


@dataclass(frozen=True)
class Source:
    """The same samples as a dataset of tpufeed and as what other tools start from, and the loader's own folder.

    `files` has a folder of JPEG files a class, or for raw work images.npy (N, 224, 224, 3) and labels.npy. `plain` is a
    dataset of these files, byte for byte: decoders are slower where JPEGs have restart markers, as those of `dataset`.
    """

    work: str
    dataset: Path
    files: Path
    folder: Path
    plain: Path


def other_form(dataset: Path, form: str) -> Path:
    """Where the samples of a dataset are as "dct" (images of any size), or "device" (a cache for `device_ops`)."""
    return dataset.with_name(f"{dataset.name}-{form}")


def labelled_files(folder: Path) -> list[tuple[Path, int]]:
    """Each file of a folder of class folders with its class as ImageFolder gives it, in a mixed order."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [(file, label) for label, folder in enumerate(classes) for file in sorted(folder.iterdir())]
    random.Random(0).shuffle(files)
    return files
