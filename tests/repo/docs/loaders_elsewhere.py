"""Try a loader that docs/moving.md names: `python loaders_elsewhere.py NAME FOLDER`, with the Python that has it.

It reads ten samples, labelled 0 to 9, in batches of four, with its defaults. Prints JSON:

    epoch       the labels of each batch
    again       the same of a second loader
    resumed     the batches after the first one, from a state saved there. None if it has no state
    defaults    the callables that the page names, the loader first, with their parameters and defaults
"""

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from PIL import Image

BATCH = 4
# The callables, what makes a loader, and what gives the batches that follow a state if `state_dict` does not.
Loader: TypeAlias = tuple[list[Any], Callable[..., Any], Any]


def photos_of(folder: Path) -> list[Path]:
    """A folder per class."""
    files = [folder / f"photos/train/{label}/photo.jpg" for label in range(10)]
    for file in files:
        file.parent.mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(file)
    return files


def ours(folder: Path) -> Loader:
    import tpufeed

    photos_of(folder)
    tpufeed.shard(folder / "photos", folder / "shards")
    options: dict[str, Any] = {"batch_size": BATCH, "columns": ["label"], "processes": 0}
    loader = tpufeed.Loader
    names = [loader, loader.state_dict, tpufeed.Mixture]
    return names, lambda: loader(folder / "shards", **options), None


def dataloader(folder: Path) -> Loader:
    from torch.utils.data import DataLoader, DistributedSampler, WeightedRandomSampler
    from torchdata.stateful_dataloader import StatefulDataLoader

    names = [DataLoader, DistributedSampler, StatefulDataLoader, WeightedRandomSampler]
    return names, lambda: StatefulDataLoader(range(10), BATCH), None


def tfdata(folder: Path) -> Loader:
    import tensorflow as tf

    of = tf.data.Dataset
    names = [of, of.shuffle, of.shard, of.batch, of.cache, of.sample_from_datasets, tf.train.Checkpoint]
    return names, lambda: of.range(10).batch(BATCH), rest_of_checkpoint


def tfds(folder: Path) -> Loader:
    import tensorflow as tf
    import tensorflow_datasets

    photos_of(folder)
    builder = tensorflow_datasets.ImageFolder(str(folder / "photos"))

    def loader() -> Any:
        return builder.as_dataset(split="train", batch_size=BATCH).map(lambda sample: sample["label"])

    return [tensorflow_datasets.load, tensorflow_datasets.ReadConfig, tf.train.Checkpoint], loader, rest_of_checkpoint


def rest_of_checkpoint(make: Callable[[], Any], folder: Path) -> Iterator[Any]:
    import tensorflow as tf

    first, second = iter(make()), iter(make())
    next(first)
    path = tf.train.Checkpoint(first).write(str(folder / "state"))
    tf.train.Checkpoint(second).read(path).assert_consumed()
    return second


def webdataset(folder: Path) -> Loader:
    from webdataset import RandomMix, RoundRobin, ShardWriter, WebDataset

    with ShardWriter(f"{folder}/%d.tar", verbose=0) as writer:
        for label in range(10):
            writer.write({"__key__": str(label), "cls": label})

    def loader() -> Any:
        return WebDataset(f"{folder}/0.tar").decode().to_tuple("cls").batched(BATCH)

    return [WebDataset, WebDataset.shuffle, WebDataset.batched, RandomMix, RoundRobin], loader, None


def mosaic(folder: Path) -> Loader:
    from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset

    with MDSWriter(out=str(folder / "mds"), columns={"label": "int"}) as writer:
        for label in range(10):
            writer.write({"label": label})

    def loader() -> Any:
        dataset = StreamingDataset(local=str(folder / "mds"), batch_size=BATCH)
        return StreamingDataLoader(dataset, batch_size=BATCH)

    return [StreamingDataset, StreamingDataLoader, Stream], loader, None


def litdata(folder: Path) -> Loader:
    from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, optimize

    optimize(int, list(range(10)), str(folder / "chunks"), chunk_size=5, num_workers=1)

    def loader() -> Any:
        return StreamingDataLoader(StreamingDataset(str(folder / "chunks")), batch_size=BATCH)

    return [StreamingDataset, StreamingDataLoader, CombinedStreamingDataset], loader, None


def dali(folder: Path) -> Loader:
    from nvidia.dali import Pipeline, fn, pipeline_def
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    photos_of(folder)

    @pipeline_def
    def labels() -> Any:
        return fn.readers.file(file_root=str(folder / "photos/train"), name="reader")[1]

    class Iterating:
        """Its pipeline takes a state when it is made."""

        def __init__(self, checkpoint: Any = None) -> None:
            options = {"batch_size": BATCH, "num_threads": 1, "device_id": None}
            pipeline = labels(**options, enable_checkpointing=True, checkpoint=checkpoint)
            self.feed = DALIGenericIterator(pipeline, ["label"], reader_name="reader")

        def __iter__(self) -> Iterator[Any]:
            return (batch[0]["label"] for batch in self.feed)

        def state_dict(self) -> Any:
            return self.feed.checkpoints()[0]

        def load_state_dict(self, state: Any) -> None:
            self.__init__(state)  # type: ignore[misc]

    return [fn.readers.file, Pipeline, DALIGenericIterator], Iterating, None


def ffcv(folder: Path) -> Loader:
    import ffcv.loader
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder
    from ffcv.writer import DatasetWriter

    file = str(folder / "all.beton")
    DatasetWriter(file, {"label": IntField()}, num_workers=1).from_indexed_dataset([(label,) for label in range(10)])
    loader = ffcv.loader.Loader
    return [loader, RGBImageField], lambda: loader(file, BATCH, pipelines={"label": [IntDecoder()]}), None


def labels_of(batch: Any) -> list[int]:
    import numpy as np

    return np.asarray(batch["label"] if isinstance(batch, dict) else batch).ravel().tolist()  # type: ignore[no-any-return]


def defaults_of(called: Any) -> dict[str, str]:
    """Those of the class above too, for parameters that a class hands on."""
    found: dict[str, str] = {}
    for one in reversed(inspect.getmro(called)) if isinstance(called, type) else [called]:
        for name, parameter in inspect.signature(one.__init__ if isinstance(one, type) else one).parameters.items():
            default = "required" if parameter.default is parameter.empty else parameter.default
            found[name] = default.__name__ if inspect.isfunction(default) else str(default)
    return found


def main(name: str, folder: Path) -> None:
    names, make, rest_of = globals()[name](folder)
    epoch, again = ([labels_of(batch) for batch in make()] for _ in range(2))
    rest = None
    if rest_of:
        rest = rest_of(make, folder)
    elif hasattr(make(), "state_dict"):
        first, rest = make(), make()
        next(iter(first))
        rest.load_state_dict(first.state_dict())
    resumed = None if rest is None else [labels_of(batch) for batch in rest]
    defaults = {called.__name__.removesuffix("V2"): defaults_of(called) for called in names}  # of tf.data
    print(json.dumps({"epoch": epoch, "again": again, "resumed": resumed, "defaults": defaults}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
