"""What benchmarks/clips.py compares: each loader gives the same kind of batches, one crop and one flip for a clip."""

from pathlib import Path

import numpy as np

from benchmarks import clips


def test_loaders_give_batches_of_one_shape(tmp_path: Path):
    work = clips.Work(24, 3, (48, 64), 24, 32)
    clips.make(work, tmp_path)
    for loader in (clips.OURS, clips.PRESIZED, clips.LOOP):  # the DataLoader reads as the loop
        images, labels = next(clips.batches_of(loader, work, tmp_path))
        assert (np.asarray(images).shape, len(labels)) == ((clips.BATCH, 3, 24, 24, 3), clips.BATCH), loader
    rate, milliseconds = clips.measure(clips.batches_of(clips.LOOP, work, tmp_path), 0.2)
    assert min(rate, milliseconds) > 0


def test_a_clip_has_one_crop(tmp_path: Path):
    """Equal frames stay equal."""
    work = clips.Work(1, 3, (48, 64), 24, 32)
    clips.make(work, tmp_path)
    first, *rest = sorted(tmp_path.glob("files/*/*/*.jpg"))
    for path in rest:
        path.write_bytes(first.read_bytes())
    files = clips.Folders(tmp_path / "files", work)
    for _ in range(5):
        clip, _ = files[0]
        assert np.array_equal(clip[0], clip[1])
        assert np.array_equal(clip[0], clip[2])
