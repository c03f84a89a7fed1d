"""Datasets of clips: their frames are those of the image path with equal draws, in loaders, caches and views."""

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.clips import build, frame, make_clips, write_source
from tests.dataset.damaging import damages_of
from tests.sharding.outputs import samples_of
from tpufeed.errors import OptionError, RecordError
from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    CutMix,
    GaussianBlur,
    HorizontalFlip,
    MixUp,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    Rotate,
)
from tpufeed.images import pipeline as pipeline_module
from tpufeed.images.decoding import decode
from tpufeed.images.pipeline import Pipeline
from tpufeed.measure.contact_sheet import make_contact_sheet
from tpufeed.measure.doctor import examine
from tpufeed.measure.pixel_stats import measure_pixels
from tpufeed.stream.columns import DEVICE_NUMBERS

CHAINS = [
    [],
    [RandomResizedCrop(24), HorizontalFlip()],
    [Resize(30), RandomCrop(24), ColorJitter(0.4, 0.4, 0.4, 0.1), RandomErasing(1.0)],
    [RandomResizedCrop((20, 28)), RandAugment(), GaussianBlur(), Rotate(20.0)],
]


@pytest.fixture
def clips(once):
    return once(make_clips) / "set"


def read(url, **options):
    options = {"batch_size": 4, "processes": 0, "threads": 1, "columns": None} | options
    return tpufeed.Loader(url, options.pop("split", "train"), **options)


def frames_at(url):
    """The stored frames of each clip by its path."""
    return {path: sample["image/encoded"] for path, sample in samples_of(url).items()}


@pytest.mark.parametrize("ops", CHAINS, ids=["none", "crop", "colours", "others"])
@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.all)])
def test_each_frame_is_that_of_the_image_path_with_the_same_draws(ops, processes, clips):
    stored, seen = frames_at(clips), 0
    pipeline = Pipeline(ops, 7, True)
    loader = read(clips, ops=ops, seed=7, processes=processes, columns=["image", "filename", "sample"])
    loader.set_epoch(3)
    with loader:
        for images, names, samples in loader:
            assert (images.dtype, images.ndim, images.shape[:2]) == (np.uint8, 5, (4, 4))
            drawn = pipeline.draw(3, samples)
            for row, name in enumerate(names):
                draws = [op[row] for op in drawn]
                for image, data in zip(images[row], stored[name], strict=True):
                    assert np.array_equal(image, pipeline.run_stored(memoryview(data), None, draws))
                seen += 1
    assert seen == 12


def test_the_order_is_that_of_any_dataset(clips, tmp_path):
    """One of images, whose paths and count are those of the clips, has the same order."""
    for path in frames_at(clips):
        (tmp_path / "raw" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(frame(1, 1)).save(tmp_path / "raw" / f"{path}.jpg")
    tpufeed.shard(tmp_path / "raw", tmp_path / "set", workers=1, progress=False)
    orders = [
        [samples.tolist() for samples in read(url, columns=["sample"], lanes=4)] for url in (clips, tmp_path / "set")
    ]
    assert orders[0] == orders[1]


def test_a_run_continues_in_the_middle_of_an_epoch(clips):
    def loader():
        return read(clips, ops=CHAINS[1], seed=3)

    whole = list(loader())
    first = loader()
    iterator = iter(first)
    assert np.array_equal(next(iterator)["image"], whole[0]["image"])
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    rest = list(second)
    assert len(rest) == len(whole) - 1
    for one, other in zip(rest, whole[1:], strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_random_access_views_and_selections(clips):
    ops = [RandomResizedCrop(24), HorizontalFlip()]
    images = tpufeed.TFRecordImages(clips, "train", ops=ops)
    assert np.asarray(images[3][0]).shape == (4, 24, 24, 3)
    for share in (None, "crop"):
        first, second, _ = next(
            iter(read(clips, views=[ops, [RandomResizedCrop(16), HorizontalFlip()]], share=share, columns="default"))
        )
        assert (first.shape, second.shape) == ((4, 1, 4, 24, 24, 3), (4, 1, 4, 16, 16, 3))
    two = tpufeed.TFRecordImages(clips, "train", views=[ops, ops], columns=["image"])[0]
    assert np.asarray(two).shape == (2, 4, 24, 24, 3)
    view = tpufeed.open_dataset(clips).select(classes=["class1"])
    assert sum(len(batch["image"]) for batch in read(view, ops=ops, batch_size=2)) == 6


@pytest.mark.parametrize("encode", ["raw", "jpeg", "png", "webp"])
def test_caches_hold_clips(encode, clips, tmp_path):
    ops = [RandomResizedCrop(32), HorizontalFlip()]
    options = {"ops": ops, "variants": 2, "encode": encode, "workers": 1, "progress": False}
    tpufeed.cache.warmup(clips, tmp_path, **options)
    manifest = tpufeed.open_dataset(tmp_path).manifest
    assert (manifest.pixels.frames, manifest.cache.shape) == (4, (4, 32, 32, 3))
    assert manifest.image_size == (32, 32)
    tpufeed.verify(tmp_path, decode="all")
    options = {"columns": ["image", "sample"], "batch_size": 12}
    found = dict(zip(*reversed(next(iter(read(tmp_path, **options)))), strict=True))
    # A build interpolates colours, and a loader repeats them: so against another cache, of bare pixels.
    if encode in ("raw", "png"):
        seed = tpufeed.open_dataset(clips).manifest.draws_seed(0)
        pipeline, stored = Pipeline(ops, seed), samples_of(clips)
        names = dict(
            zip(*reversed(next(iter(read(clips, ops=[], columns=["filename", "sample"], batch_size=12)))), strict=True)
        )
        for sample, images in found.items():
            draws = [op[0] for op in pipeline.draw(0, np.array([sample]))]
            for image, data in zip(images, stored[names[sample]]["image/encoded"], strict=True):
                assert np.array_equal(image, pipeline.run_stored(memoryview(data), None, draws))
    smaller = next(iter(read(tmp_path, ops=[CenterCrop(20)], columns="default")))[0]
    assert smaller.shape == (4, 4, 20, 20, 3)
    tpufeed.cache.warmup(tmp_path, tmp_path / "again", ops=[CenterCrop(16)], allow_augmented=True, workers=1)
    assert next(iter(read(tmp_path / "again", columns="default")))[0].shape == (4, 4, 16, 16, 3)


def test_variants_and_views_share_the_decoding_of_each_frame(clips, tmp_path, monkeypatch):
    decoded = []

    def count(*args):
        decoded.append(args)
        return decode(*args)

    monkeypatch.setattr(pipeline_module, "decode", count)
    ops = [RandomResizedCrop(16), HorizontalFlip()]
    tpufeed.cache.warmup(clips, tmp_path, ops=ops, variants=3, workers=1)
    assert len(decoded) <= 2 * 4 * 12  # the plan has tried some, too
    decoded.clear()
    assert len(tpufeed.TFRecordImages(clips, "train", views=[ops, ops, ops], columns=["image"])[3]) == 3
    assert len(decoded) == 4


def test_device_ops_give_all_frames_the_same_numbers(clips):
    later = [RandomResizedCrop(24), HorizontalFlip(), ColorJitter(0.4, 0.4)]
    loader = read(clips, ops=[Resize((40, 56))], device_ops=later, columns="default")
    stream = loader.stream
    from tpufeed.stream.mixing import _NUMPY

    sent = next(stream.iterate(as_dict=True, on_device=True))
    made = stream.run_device_ops(sent, _NUMPY)["image"]
    here = next(iter(read(clips, ops=[Resize((40, 56))], device_ops=later, columns="default")))[0]
    assert made.shape == here.shape == (4, 4, 24, 24, 3)
    difference = np.abs(made.astype(int) - here)
    assert difference.max() <= 3
    assert difference.mean() < 0.5


@pytest.mark.parametrize("op", [MixUp(), CutMix()], ids=str)
def test_all_frames_of_a_clip_are_mixed_alike(clips, op):
    given = {"ops": [Resize((24, 24))], "columns": ["image", "label"]}
    images, _ = next(iter(read(clips, **given)))
    mixed, labels = next(iter(read(clips, device_ops=[op], **given)))
    assert labels.shape == (4, 2)
    for row, (clip, numbers) in enumerate(zip(mixed, numbers_of(clips, op, **given), strict=True)):
        own, other = images[row].astype(float), images[row ^ 1].astype(float)
        if isinstance(op, MixUp):
            wanted = np.rint(own * numbers[0] + other * (1 - numbers[0]))
        else:
            top, left, bottom, right = map(int, numbers[1:])
            wanted = own.copy()
            wanted[:, top:bottom, left:right] = other[:, top:bottom, left:right]
        assert not np.array_equal(clip, images[row])
        assert np.abs(clip - wanted).max() <= int(isinstance(op, MixUp))


def numbers_of(clips, op, **given):
    """What is drawn for the clips of the first batch."""
    with read(clips, device_ops=[op], **given) as loader:
        return next(loader.stream.iterate(as_dict=True, on_device=True))[DEVICE_NUMBERS]


def test_grows_by_its_frames_alone(tmp_path):
    build(write_source(tmp_path / "raw", 4), tmp_path / "set")
    write_source(tmp_path / "raw", 2, start=4)
    tpufeed.append(tmp_path / "raw", tmp_path / "set", workers=1, progress=False)
    manifest = tpufeed.open_dataset(tmp_path / "set").manifest
    assert (manifest.records, manifest.number) == ({"train": 6}, 2)
    shutil.copytree(tmp_path / "raw", tmp_path / "moved", copy_function=shutil.copyfile)  # other times: bytes decide
    for source in ("raw", "moved"):
        assert tpufeed.append(tmp_path / source, tmp_path / "set", workers=1, progress=False).skipped == 6
    assert tpufeed.open_dataset(tmp_path / "set").number == 2
    write_source(tmp_path / "raw", 1, start=8)
    for frames in (8, None):
        with pytest.raises(OptionError, match="frames"):
            build(tmp_path / "raw", tmp_path / "set", frames, append=True)
        with pytest.raises(OptionError, match="clips of 4 frames, and the new ones uint8 of 3 channels"):
            build(tmp_path / "raw", tmp_path / "set", frames, append=True, allow_different=True)


def test_a_later_frame_decides_whether_a_clip_is_known(tmp_path):
    build(write_source(tmp_path / "raw", 2), tmp_path / "set")
    shutil.copytree(tmp_path / "raw", tmp_path / "moved")
    shutil.copy(tmp_path / "moved/class1/clip01/frame_0.jpg", tmp_path / "moved/class1/clip01/frame_8.jpg")
    tpufeed.append(tmp_path / "moved", tmp_path / "set", workers=1, progress=False)
    assert tpufeed.open_dataset(tmp_path / "set").manifest.records == {"train": 3}


def test_mixtures_take_clips_of_one_length(clips, tmp_path):
    build(write_source(tmp_path / "raw", 2), tmp_path / "same")
    build(tmp_path / "raw", tmp_path / "other", 3)
    ops = {"ops": [CenterCrop(24)], "columns": "default"}
    mixed = read(tpufeed.Mixture({str(clips): 1, str(tmp_path / "same"): 1}), **ops)
    assert next(iter(mixed))[0].shape == (4, 4, 24, 24, 3)
    with pytest.raises(OptionError, match=r"\(4, 24, 24, 3\).*\(3, 24, 24, 3\)"):
        iter(read(tpufeed.Mixture({str(clips): 1, str(tmp_path / "other"): 1}), **ops))


def test_show_and_statistics(clips):
    dataset = tpufeed.open_dataset(clips)
    sheet = make_contact_sheet(dataset, count=3, size_px=56)
    assert not sheet.problems
    stats = measure_pixels(dataset, "train")
    every = np.concatenate([np.asarray(batch["image"]).reshape(-1, 3) for batch in read(clips, ops=[])])
    assert np.allclose([of.mean for of in stats], every.mean(0), atol=1)
    assert len(stats) == 3


def damage(url, change):
    """Write the shard anew, with `change` made to the packed frames of each record."""
    from tpufeed.dataset.schema import record_layout
    from tpufeed.dataset.writer import ShardWriter

    dataset = tpufeed.open_dataset(url)
    (shard,) = Path(url).glob("train-0*.tfrecord")
    payloads = [bytes(payload) for payload in dataset.iter_payloads("train")]
    layout, index = record_layout(dataset.manifest.features), Path(url, "train.index.npy")
    shard.unlink()
    writer = ShardWriter(shard, layout)
    for payload in payloads:
        size, ints, rest = layout.split(memoryview(payload))
        start = layout.image_offset
        writer.add(change(payload[start : start + size]), ints, rest)
    writer.close()
    offsets = np.array(writer.offsets, np.uint64)
    np.save(index, offsets)
    return shard


@pytest.mark.parametrize(
    ("name", "said"), [("fewer", "3 frames"), ("text", "frame 2"), ("torn", "no sound length"), ("size", "frame 3")]
)
def test_damaged_clips_are_found_and_named(name, said, tmp_path):
    from tpufeed.tfrecord.layout import pack_values, split_values

    build(write_source(tmp_path / "raw", 2), tmp_path / "set")
    small = (tmp_path / "small.png").absolute()
    Image.fromarray(frame(1, 1, 9, 8)).save(small)

    def change(packed):
        values = [bytes(value) for value in split_values(memoryview(packed))]
        if name == "torn":
            return packed[:-10]
        if name == "fewer":
            values.pop()
        elif name == "text":
            values[2] = b"a text where a frame should be"
        else:
            values[3] = small.read_bytes()
        return pack_values(values)

    damage(tmp_path / "set", change)
    assert any(said in str(each) for each in damages_of(tmp_path / "set", decode="all"))
    manifest = tmp_path / "set/manifest.json"
    shard = next((tmp_path / "set").glob("train-0*.tfrecord"))
    found = msgspec.json.decode(manifest.read_bytes())
    (entry,) = found["splits"]["train"]["variants"][0]["shards"]
    entry["bytes"] = shard.stat().st_size
    manifest.write_bytes(msgspec.json.encode(found))
    with pytest.raises(RecordError, match=said):
        list(read(tmp_path / "set", ops=[], batch_size=2))


def test_what_has_no_meaning_for_clips_is_refused_by_name(clips, tmp_path):
    for options, said in (({"encode": "dct"}, "dct"), ({"encode": "jpeg", "names": "kaggle"}, "single images")):
        with pytest.raises(OptionError, match=said):
            tpufeed.cache.warmup(clips, tmp_path, ops=[CenterCrop(32)], workers=1, **options)


@pytest.mark.parametrize("is_cache", [False, True])
def test_doctor_measures_clips(is_cache, clips, tmp_path):
    url, ops = clips, [RandomResizedCrop(24)]
    if is_cache:
        tpufeed.cache.warmup(clips, tmp_path, ops=[CenterCrop(32)], workers=1)
        url = tmp_path
    found = examine(url, ops=ops, batch_size=4, seconds=1.0)
    assert any("clip" in note for note in found.notes)
    rates = {stage.name: stage.images_per_second for stage in found.stages}
    assert rates["reading"] > 0
    assert rates["assembly"] > 0
    assert is_cache or rates["decoding"] > 0


def test_the_manifest_refuses_impossible_clips(clips, tmp_path):
    shutil.copytree(clips, tmp_path / "set")
    path = tmp_path / "set/manifest.json"
    text = path.read_text()
    for frames in (0, 1, 100_000, '"four"'):
        path.write_text(text.replace('"frames": 4', f'"frames": {frames}'))
        with pytest.raises(tpufeed.errors.ManifestError, match="frames"):
            tpufeed.open_dataset(tmp_path / "set")
