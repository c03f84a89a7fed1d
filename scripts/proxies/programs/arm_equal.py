"""What this machine's processor makes of the same files: `arm_equal.py FOLDER NAME`, on x86-64 first.

FOLDER has photos/. Digests go to NAME.json, pixels of each op to NAME.npz. The first to run leaves cache/ and
state.json, which the other takes up.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

import tpufeed
from tests.images.ops.every import gather
from tests.images.ops.test_every_op import picture
from tpufeed.images import CenterCrop, Custom, HorizontalFlip, RandomResizedCrop
from tpufeed.images.pipeline import Pipeline

BATCH, SIDE, BEFORE = 8, 64, 3


def main(folder: Path, name: str) -> None:
    own = folder / name
    tpufeed.shard(folder / "photos", own / "flowers", shards=4, splits="train=0.8,val=0.2", workers=2)
    shards = {path.name: digest(path.read_bytes()) for path in sorted((own / "flowers").glob("*.tfrecord"))}
    if first := not (folder / "cache").exists():
        tpufeed.cache.warmup(own / "flowers", folder / "cache", size=SIDE, variants=2)
    batches = {f"processes={number}": read(folder / "cache", number) for number in (0, 2)}
    samples = rest(folder / "cache", folder / "state.json", first)
    (folder / f"{name}.json").write_text(json.dumps({"shards": shards, "batches": batches, "samples": samples}))
    np.savez(folder / f"{name}.npz", **dict(pixels(str(own / "flowers"))))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read(cache: Path, processes: int) -> list[str]:
    """The digests of an epoch's batches, each with its samples' numbers."""
    columns = ["image", "label", "sample"]
    with tpufeed.Loader(cache, "train", batch_size=BATCH, processes=processes, columns=columns) as loader:
        return [digest(b"".join(np.ascontiguousarray(each).tobytes() for each in batch)) for batch in loader]


def rest(cache: Path, state: Path, first: bool) -> list[int]:
    """The samples of an epoch that follow those of a state, which the first to run makes."""
    with tpufeed.Loader(cache, "train", batch_size=BATCH, columns=["sample"]) as loader:
        if first:
            batches = iter(loader)
            for _ in range(BEFORE):
                next(batches)
            state.write_text(json.dumps(loader.state_dict()))
        else:
            loader.load_state_dict(json.loads(state.read_text()))
            batches = iter(loader)
        return [int(sample) for batch in batches for sample in np.asarray(batch).reshape(-1)]


def pixels(dataset: str):  # type: ignore[no-untyped-def]
    """Names and pixels: of decoded photographs, of an epoch's crops, of a test picture after each op."""
    for name, ops in (("decoded", [CenterCrop(SIDE)]), ("cropped", [RandomResizedCrop(SIDE), HorizontalFlip()])):
        with tpufeed.Loader(dataset, "train", batch_size=BATCH, ops=ops, processes=0) as loader:
            yield name, np.concatenate([images for images, _ in loader])
    for op in (case.op for case in gather("CASES") if not isinstance(case.op, Custom)):
        pipeline = Pipeline([op], 0)
        draws = ([drawn[0] for drawn in pipeline.draw(3, np.array([sample]))] for sample in range(8))
        yield str(op), np.stack([pipeline.run(picture(61, 83), each) for each in draws])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
