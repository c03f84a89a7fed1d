"""Device ops in a loader: which feeds run them where, that all give the same samples, and what is refused."""

import inspect
import itertools
import json
import multiprocessing
import pickle
from functools import partial

import numpy as np
import pytest

import tpufeed
from tests.adapters import contract
from tests.adapters.contract import FEEDS
from tests.frameworks import lazy, need
from tpufeed import cache
from tpufeed.errors import OptionError
from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    Custom,
    CutMix,
    GaussianBlur,
    HorizontalFlip,
    MixUp,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    Rotate,
)

ARRAYS = lazy("tpufeed.adapters.torch.arrays:ARRAYS")

jax = lazy("jax")
tf = lazy("tensorflow")
torch = lazy("torch")
NamedSharding = lazy("jax.sharding:NamedSharding")
PartitionSpec = lazy("jax.sharding:PartitionSpec")

pytestmark = pytest.mark.xdist_group("frameworks")

EPOCHS = 2
CROPS = [RandomResizedCrop((40, 48)), HorizontalFlip()]
EVERY = [*CROPS, ColorJitter(0.4, 0.4, 0.4, 0.1), GaussianBlur(0.5), RandomErasing(value=(9, 99, 199))]
OPTIONS = {"batch_size": 8, "seed": 5, "columns": ["image", "label", "sample"], "remainder": "pad", "processes": 0}


@pytest.fixture(scope="module")
def whole_url(dataset_url):
    """A raw cache of whole images, 64 high and 72 wide."""
    url = f"{dataset_url}-whole"
    cache.warmup(dataset_url, url, ops=[Resize(72), CenterCrop((64, 72))], workers=1)
    return url


@pytest.fixture(scope="module")
def coded_url(dataset_url):
    """A cache of the coefficients of whole images, 64 high and 80 wide."""
    url = f"{dataset_url}-coded"
    cache.warmup(dataset_url, url, ops=[Resize(80), CenterCrop((64, 80))], encode="dct", workers=1)
    return url


@pytest.fixture(scope="module")
def xla_process():
    need("torch_xla")
    with multiprocessing.get_context("spawn").Pool(1, contract.start_on_cpu) as pool:
        yield pool


def epochs(name, url, xla_process=None, count=EPOCHS, **options):
    """Epochs of a feed of the contract, batches as tuples of numpy arrays."""
    given = name, contract.epochs, url, (count,), OPTIONS | options
    if name == "torch_xla":
        return xla_process.apply_async(contract.run, given).get(280)
    return contract.run(*given)


def check_equal(found, expected, most_levels, mean_levels):
    """Images are equal within some levels, mixed labels but for rounding, and other columns exactly."""
    assert [len(epoch) for epoch in found] == [len(epoch) for epoch in expected]
    far, values = 0.0, 0
    for epoch, wanted in zip(found, expected, strict=True):
        for batch, want in zip(epoch, wanted, strict=True):
            (image, *others), (host, *rest) = batch, want
            assert image.shape == host.shape
            assert image.dtype == np.uint8
            difference = np.abs(image.astype(int) - host)
            assert difference.max() <= most_levels
            far, values = far + difference.sum(), values + difference.size
            for other, one in zip(others, rest, strict=True):
                np.testing.assert_allclose(other, one, rtol=0, atol=1e-6 if one.dtype == np.float32 else 0)
    assert far / values <= mean_levels


@pytest.mark.all
@pytest.mark.parametrize(
    ("ops", "most", "mean"),
    [(CROPS, 1, 0.3), (EVERY, 12, 0.6), ([CenterCrop((40, 48))], 0, 0)],
    ids=["crops", "every", "nothing drawn"],
)
def test_all_feeds_give_the_same_samples(whole_url, xla_process, ops, most, mean):
    """Steps of a chain may add up: a level's difference before a large change of contrast is several behind it."""
    options = {"device_ops": ops}
    expected = epochs("numpy", whole_url, **options)
    assert expected[0][0][0].shape == (8, 40, 48, 3)
    check_equal(epochs("numpy", whole_url, ops=ops), expected, 0, 0)  # the same draws as in `ops`
    for name in FEEDS.keys() - {"numpy", "tf-direct"}:
        on_device = name in ("torch-device", "torch_xla", "jax")
        check_equal(epochs(name, whole_url, xla_process, **options), expected, most if on_device else 0, mean)


@pytest.mark.parametrize("ops", [[RandomResizedCrop(24), HorizontalFlip()], [Resize(16)]], ids=str)
def test_a_jpeg_is_decoded_whole_on_the_host_as_for_a_device(dataset_url, tmp_path, ops):
    """As `ops` these crops would decode it at a half or a quarter."""
    url = str(tmp_path / "jpegs")
    cache.warmup(dataset_url, url, ops=[Resize(72), CenterCrop((64, 72))], encode="jpeg", workers=1)
    expected = epochs("numpy", url, count=1, device_ops=ops)
    check_equal(epochs("jax", url, count=1, device_ops=ops), expected, 1, 0.3)
    reduced = epochs("numpy", url, count=1, ops=ops)
    assert any(
        np.abs(one[0].astype(int) - other[0]).max() > 1 for one, other in zip(reduced[0], expected[0], strict=True)
    )


# The host rounds after the inverse DCT, and clips levels before it resizes: most differ where levels are far outside.
CODED_MOST, CODED_MEAN = 40, 0.6


@pytest.mark.parametrize("ops", [CROPS, []], ids=["crops", "none"])
def test_a_device_decodes_coefficients(coded_url, ops):
    expected = epochs("numpy", coded_url, count=1, device_ops=ops)
    for name in ("jax", "torch-device"):
        check_equal(epochs(name, coded_url, count=1, device_ops=ops), expected, CODED_MOST, CODED_MEAN)


@pytest.mark.all
@pytest.mark.parametrize("ops", [[*CROPS, MixUp()], [RandomErasing(value=9), *CROPS]], ids=["mixed", "erased first"])
def test_all_feeds_decode_coefficients(coded_url, xla_process, ops):
    options = {"device_ops": ops, "remainder": "drop", "batch_size": 16}
    expected = epochs("numpy", coded_url, **options)
    for name in FEEDS.keys() - {"numpy", "tf-direct"}:
        on_device = name in ("torch-device", "torch_xla", "jax")
        most, mean = (CODED_MOST, CODED_MEAN) if on_device else (0, 0)
        check_equal(epochs(name, coded_url, xla_process, **options), expected, most, mean)


def test_coefficients_continue_in_mid_epoch_and_a_bad_record_is_replaced(coded_url, damage):
    options = OPTIONS | {"device_ops": CROPS, "max_bad_records": 1}
    bad = damage(coded_url, 33).url
    with tpufeed.Loader(bad, **options) as loader:
        feed = loader.to_jax()
        batches = iter(feed)
        next(batches)
        state = feed.state_dict()
        expected = [tuple(map(np.asarray, batch)) for batch in batches]
        assert feed.stats().host.bad_records == 1
    with tpufeed.Loader(bad, **options) as loader:
        loader.load_state_dict(state)
        for found, wanted in zip(loader.to_jax(), expected, strict=True):
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(one, other)


def test_the_device_gets_whole_images_and_a_few_numbers(whole_url, monkeypatch):
    sent = []
    with tpufeed.Loader(whole_url, device_ops=CROPS, **OPTIONS) as loader:
        assert loader.image_shape == (40, 48, 3)
        apply = loader.stream.device_ops.ops.apply
        monkeypatch.setattr(
            loader.stream.device_ops.ops, "apply", lambda *given, **more: sent.append(given) or apply(*given, **more)
        )
        next(iter(loader.to_device("cpu")))
    images, numbers = sent[0][:2]
    assert tuple(images.shape) == (8, 64, 72, 3)
    assert numbers.shape[0] == 8
    assert numbers.shape[1] < 20


@pytest.mark.parametrize("rows", [True, False])
def test_images_travel_to_the_device_as_rows_or_as_pixels(whole_url, monkeypatch, rows):
    shapes, put = list[tuple[int, ...]](), jax.device_put
    monkeypatch.setattr("tpufeed.adapters.jax.sharding.SENDS_ROWS", rows)
    monkeypatch.setattr(jax, "device_put", lambda array, *more: shapes.append(array.shape) or put(array, *more))
    expected = epochs("numpy", whole_url, count=1, device_ops=CROPS)
    check_equal(epochs("jax", whole_url, count=1, device_ops=CROPS), expected, 1, 0.3)
    assert ((8, 64, 72 * 3) in shapes, (8, 64, 72, 3) in shapes) == (rows, not rows)


def test_autocast_of_a_training_loop_changes_no_pixel(whole_url):
    with tpufeed.Loader(whole_url, device_ops=CROPS, **OPTIONS) as loader:
        columns = next(loader.stream.iterate(on_device=True))
        columns = {name: torch.from_numpy(column) for name, column in columns.items()}
        expected = loader.stream.run_device_ops(columns, ARRAYS)["image"]
        with torch.autocast("cpu", torch.bfloat16):
            found = loader.stream.run_device_ops(columns, ARRAYS)["image"]
    assert torch.equal(found, expected)


@pytest.mark.all
def test_ops_on_the_host_come_first(dataset_url):
    """From JPEGs of several sizes, in worker processes."""
    options = {"ops": [Resize(72), CenterCrop((64, 72))], "device_ops": CROPS, "processes": 1}
    check_equal(epochs("jax", dataset_url, **options), epochs("numpy", dataset_url, **options), 1, 0.3)


@pytest.mark.all
def test_a_cache_leaves_its_live_ops_to_the_host_and_the_others_to_the_device(dataset_url, tmp_path):
    cache.warmup(dataset_url, tmp_path / "c", ops=[Resize((72, 72))], live=[RandomCrop(64)], workers=1)
    options = {"device_ops": [HorizontalFlip(), ColorJitter(brightness=0.5)]}
    check_equal(epochs("jax", str(tmp_path / "c"), **options), epochs("numpy", str(tmp_path / "c"), **options), 1, 0.3)


def test_in_mid_epoch_the_draws_are_the_same_in_another_world(whole_url):
    options = OPTIONS | {"device_ops": CROPS, "lanes": 4, "remainder": "drop"}

    def images_of(feed):
        return {
            int(each): np.asarray(image) for images, _, ids in feed for image, each in zip(images, ids, strict=True)
        }

    with tpufeed.Loader(whole_url, **options) as loader:
        batches = iter(loader)
        next(batches)
        state, expected = loader.state_dict(), images_of(batches)
    found = {}
    for rank, adapt in enumerate((tpufeed.Loader.to_jax, partial(tpufeed.Loader.to_device, device="cpu"))):
        with tpufeed.Loader(whole_url, **options | {"batch_size": 4, "world": (rank, 2)}) as loader:
            loader.load_state_dict(state)
            mesh = jax.sharding.Mesh(jax.devices()[:4], ("data",))
            found |= images_of(adapt(loader, mesh) if rank == 0 else adapt(loader))
    assert found.keys() == expected.keys()
    for sample, image in expected.items():
        assert np.abs(found[sample].astype(int) - image).max() <= 1


@pytest.mark.all
def test_host_and_device_take_turns_on_one_loader(whole_url):
    """Each continues where the other stopped; `iter` alone disturbs no iteration."""
    with tpufeed.Loader(whole_url, device_ops=CROPS, **OPTIONS) as loader:
        first = [images for images, *_ in loader]
        loader.set_epoch(0)
        on_jax = iter(loader.to_jax())
        begun = [np.asarray(next(on_jax)[0])]
        iter(loader)
        begun += [np.asarray(images) for images, *_ in on_jax]
        second = [images for images, *_ in loader]
        third = [np.asarray(images) for images, *_ in loader.to_jax()]
        loader.set_epoch(1)
        again = [np.asarray(images) for images, *_ in loader.to_jax()]
    for images, host in zip(begun + again, first + second, strict=True):
        assert np.abs(images.astype(int) - host).max() <= 1
    assert not np.array_equal(third[0], again[0])


@pytest.mark.all
def test_one_program_serves_all_steps_and_epochs(whole_url, monkeypatch):
    traced = []
    with tpufeed.Loader(whole_url, device_ops=EVERY, **OPTIONS) as loader:
        apply = loader.stream.device_ops.ops.apply
        monkeypatch.setattr(loader.stream.device_ops.ops, "apply", lambda *given: traced.append(given) or apply(*given))
        feed = loader.to_jax()
        for _ in range(2):
            assert len(list(feed)) == 9
    assert len(traced) == 1


@pytest.mark.all
@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("columns", [["image", "label", "sample"], None])
def test_a_compiled_step_of_tensorflow_finishes_batches(whole_url, repeat, columns, monkeypatch):
    options = OPTIONS | {"columns": columns, "remainder": "drop", "repeat": repeat}
    with tpufeed.Loader(whole_url, **options) as loader, pytest.raises(OptionError, match="leave finish out"):
        loader.to_tf(finish=False)
    loader = tpufeed.Loader(whole_url, device_ops=CROPS, **options)
    expected = list(itertools.islice(loader, 3))
    loader.set_epoch(0)
    dataset = loader.to_tf(finish=False)
    files, apply = set(), loader.stream.device_ops.ops.apply

    def note(*given):
        files.update(frame.filename for frame in inspect.stack(0))
        return apply(*given)

    monkeypatch.setattr(loader.stream.device_ops.ops, "apply", note)
    finish = tf.function(loader.finish, jit_compile=True)
    assert dataset.element_spec["image"].shape == (8, 64, 72, 3)
    found = [tf.nest.map_structure(lambda value: value.numpy(), finish(batch)) for batch in dataset.take(3)]
    if columns is None:
        found, expected = ([tuple(batch.values()) for batch in batches] for batches in (found, expected))
    check_equal([found], [expected], 1, 0.3)
    assert finish.experimental_get_tracing_count() == 1
    assert inspect.getfile(type(loader)) in files  # not what AutoGraph makes of it, which takes seconds


@pytest.mark.all
def test_a_compiled_step_of_tensorflow_decodes_coefficients(coded_url):
    loader = tpufeed.Loader(coded_url, device_ops=CROPS, **OPTIONS | {"remainder": "drop"})
    expected = list(itertools.islice(loader, 3))
    loader.set_epoch(0)
    dataset, finish = loader.to_tf(finish=False), tf.function(loader.finish, jit_compile=True)
    assert dataset.element_spec["image"].dtype == tf.int8
    found = [tf.nest.map_structure(lambda value: value.numpy(), finish(batch)) for batch in dataset.take(3)]
    check_equal([found], [expected], CODED_MOST, CODED_MEAN)


def test_feeds_with_device_ops_are_pickled(whole_url):
    with tpufeed.Loader(whole_url, device_ops=CROPS, **OPTIONS) as loader:
        feed = loader.to_jax()
        expected = np.asarray(next(iter(feed))[0])
        feed.set_epoch(0)
        with pickle.loads(pickle.dumps(feed)) as copied:
            np.testing.assert_array_equal(np.asarray(next(iter(copied))[0]), expected)


def test_a_mixture_sends_the_draws_of_each_dataset(whole_url, cache_url, tmp_path):
    cache.warmup(whole_url, tmp_path / "other", ops=[HorizontalFlip(p=1.0)], workers=1)
    mixture = tpufeed.Mixture({whole_url: 0.6, str(tmp_path / "other"): 0.4})
    given = {"device_ops": CROPS, "columns": ["image", "source", "sample"]}
    check_equal(epochs("jax", mixture, **given), epochs("numpy", mixture, **given), 1, 0.3)
    with pytest.raises(OptionError, match=r"image.*\(64, 64, 3\)"):
        tpufeed.Loader(tpufeed.Mixture({whole_url: 0.5, cache_url: 0.5}), device_ops=[HorizontalFlip()], **OPTIONS)


def test_a_bad_record_repeats_the_sample_before_it_with_its_draws(whole_url, damage):
    bad = damage(whole_url, 33)
    given = {"device_ops": CROPS, "max_bad_records": 1}
    check_equal(epochs("jax", bad.url, count=1, **given), epochs("numpy", bad.url, count=1, **given), 1, 0.3)


def test_without_images_device_ops_do_nothing(whole_url):
    options = {"device_ops": CROPS, "columns": ["sample", "label"], "remainder": "drop"}
    on_host, on_device = (
        np.concatenate([ids for ids, _ in epochs(name, whole_url, **options)[0]]) for name in ("numpy", "jax")
    )
    np.testing.assert_array_equal(on_device, on_host)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device_ops": [Rotate(10)]}, "Rotate.*ops"),
        ({"device_ops": [Custom("tests.images.functions:invert")]}, "Custom.*ops"),
        ({"device_ops": ["HorizontalFlip"]}, "HorizontalFlip"),
        ({"device_ops": CROPS, "views": [CROPS, CROPS]}, "views.*device_ops"),
        ({"device_ops": CROPS, "ops": [RandomResizedCrop(32), Rotate(5)], "columns": ["nonsense"]}, "nonsense"),
    ],
    ids=str,
)
def test_what_a_device_cannot_do_is_refused_at_once(whole_url, options, said):
    with pytest.raises(OptionError, match=said):
        tpufeed.Loader(whole_url, **OPTIONS | options)


def test_images_of_several_sizes_are_refused(dataset_url):
    with pytest.raises(OptionError, match=r"device_ops need images of one size.*Resize\(256\)"):
        tpufeed.Loader(dataset_url, device_ops=CROPS, **OPTIONS)


def test_a_crop_of_crops_is_refused_but_no_flip_of_them(cache_url):
    with pytest.raises(OptionError, match=r"crops already.*cache warmup"):
        tpufeed.Loader(cache_url, device_ops=CROPS, **OPTIONS)
    tpufeed.Loader(cache_url, device_ops=[RandomCrop(64, padding=4), HorizontalFlip()], **OPTIONS).close()


def test_a_sharding_that_splits_images_is_refused(whole_url):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    sharding = NamedSharding(mesh, PartitionSpec("data", None, "model"))
    with tpufeed.Loader(whole_url, device_ops=CROPS, **OPTIONS) as loader:
        with pytest.raises(OptionError, match=r"whole images.*PartitionSpec\('data'\)"):
            loader.to_jax(sharding)
        images = next(iter(loader.to_jax(NamedSharding(mesh, PartitionSpec("data")))))[0]
        assert len(images.sharding.device_set) == 8


LABELLED = {"columns": ["image", "label", "sample"], "remainder": "drop", "batch_size": 16}


@pytest.mark.all
@pytest.mark.parametrize("mixing", [[MixUp(0.4)], [CutMix(p=0.7)], [MixUp(), CutMix(p=0.5)]], ids=str)
def test_images_and_labels_are_mixed_in_every_feed(whole_url, xla_process, mixing):
    options = LABELLED | {"device_ops": [*CROPS, *mixing]}
    expected = epochs("numpy", whole_url, **options)
    plain = epochs("numpy", whole_url, **LABELLED | {"device_ops": CROPS})
    batches = zip(*(itertools.chain.from_iterable(each) for each in (expected, plain)), strict=True)
    for (images, labels, ids), (before, classes, same) in batches:
        np.testing.assert_array_equal(ids, same)
        assert labels.dtype == np.float32
        assert labels.shape == (16, 3)
        np.testing.assert_allclose(labels.sum(1), 1, atol=1e-6)
        assert not np.array_equal(images, before)
        both = np.eye(3)[classes] + np.eye(3)[classes.reshape(-1, 2)[:, ::-1].ravel()]
        assert not labels[both == 0].any()  # nothing but the classes of a pair
    for name in FEEDS.keys() - {"numpy", "tf-direct"}:
        most = 2 if name in ("torch-device", "torch_xla", "jax") else 0
        check_equal(epochs(name, whole_url, xla_process, **options), expected, most, 0.3)


def test_a_mixed_batch_repeats_in_another_world(whole_url):
    """The draws are those of the samples; who is whose neighbour depends on the batch."""
    options = LABELLED | {"device_ops": [CutMix()], "lanes": 4, "shuffle": False}

    def shares(**more):
        with tpufeed.Loader(whole_url, **options | more) as loader:
            return loader.stream._decoder.plans[0].device_numbers(1, np.arange(8))

    np.testing.assert_array_equal(shares(), shares(world=(1, 2), batch_size=8))


def test_labels_of_several_classes_are_mixed(tmp_path, photo_folder):
    rows = [
        {"path": str(path), "label": ["a", "b"][: number % 3]}
        for number, path in enumerate(sorted(photo_folder.glob("*/*.jpg"))[:16])
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tpufeed.shard(tmp_path / "t.jsonl", tmp_path / "d", workers=1)
    given = {
        "ops": [Resize((32, 32))],
        "device_ops": [MixUp()],
        "label_format": "multi_hot",
        "columns": ["image", "label"],
        "remainder": "drop",
    }
    host, device = (
        epochs(name, str(tmp_path / "d"), count=1, **given | {"batch_size": 16}) for name in ("numpy", "jax")
    )
    check_equal(device, host, 1, 0.3)
    assert 0 < host[0][0][1].max() <= 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device_ops": [MixUp(), HorizontalFlip()]}, "put HorizontalFlip before it"),
        ({"ops": [MixUp()]}, "last in device_ops"),
        ({"device_ops": [MixUp()], "remainder": "pad"}, "remainder"),
        ({"device_ops": [MixUp()], "batch_size": 9}, "even batch_size"),
        ({"device_ops": [MixUp()], "columns": ["label"]}, "need the image"),
        ({"device_ops": [CutMix()], "columns": ["image", "sample"]}, "'label'"),
    ],
    ids=str,
)
def test_what_cannot_be_mixed_is_refused(whole_url, options, said):
    with pytest.raises(OptionError, match=said):
        tpufeed.Loader(whole_url, **LABELLED | options)


def test_tensorflow_that_reads_by_itself_mixes_nothing(whole_url):
    loader = tpufeed.Loader(whole_url, **LABELLED | {"device_ops": [MixUp()]})
    with loader, pytest.raises(OptionError, match="leave MixUp and CutMix out"):
        loader.to_tf(direct=True)


@pytest.mark.all
def test_devices_with_one_row_have_no_pairs(whole_url):
    loader = tpufeed.Loader(whole_url, **LABELLED | {"batch_size": 8, "device_ops": [MixUp()]})
    with loader, pytest.raises(OptionError, match="batch_size that 16 divides"):
        next(iter(loader.to_jax()))
