"""One contract for all loaders: the same samples with the same pixels in the same order, by design.md's account.

The expectation is put together from the order, a full parse of the stored records, and the ops run image by image.
What `to_tf(direct=True)` is excused from: order, which samples a rank has, the windows and flips that are drawn,
states.
"""

import functools
import json
import multiprocessing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tpufeed
from tests.adapters import contract
from tests.adapters.contract import FEEDS, OPTIONS
from tests.frameworks import lazy, need
from tpufeed import Mixture, cache
from tpufeed.dataset.order import EpochOrder, Share, World, default_lanes
from tpufeed.dataset.reader import open_dataset, own_ids
from tpufeed.images import HorizontalFlip, RandomCrop
from tpufeed.stream.decoding import plan_decoding
from tpufeed.stream.options import LoaderOptions
from tpufeed.stream.sampler import SampleSource

KerasFeed = lazy("tpufeed.adapters.keras.dataset:KerasFeed")

DataLoader = lazy("torch.utils.data:DataLoader")

pytestmark = pytest.mark.xdist_group("frameworks")

SAMPLES, EPOCHS, BATCH, SEED = 70, 2, OPTIONS["batch_size"], OPTIONS["seed"]
SAVERS = [name for name, feed in FEEDS.items() if feed.saves]
LOADERS = [name for name, feed in FEEDS.items() if feed.loads]


@dataclass(frozen=True)
class Loader:
    """Runs functions of contract.py with a feed; that of torch_xla runs in another process."""

    name: str
    pool: Any = None

    @property
    def kind(self):
        return FEEDS[self.name]

    def run(self, do, url, *arguments, **options):
        given = self.name, do, url, arguments, options
        return contract.run(*given) if self.pool is None else self.pool.apply_async(contract.run, given).get(280)


@pytest.fixture(scope="module")
def xla_process():
    need("torch_xla")
    with multiprocessing.get_context("spawn").Pool(1, contract.start_on_cpu) as pool:
        yield pool


@pytest.fixture(scope="module")
def loaders(request):
    """`loaders(name)`."""
    return lambda name: Loader(name, request.getfixturevalue("xla_process") if name == "torch_xla" else None)


@pytest.fixture(params=FEEDS)
def loader(request, loaders):
    """Each feed, in what its framework could get wrong."""
    return loaders(request.param)


@pytest.fixture(params=["numpy", "tf-direct"])
def reader(request, loaders):
    """What reads: the loader, whose batches all feeds hand on, and TensorFlow by itself."""
    return loaders(request.param)


@pytest.fixture
def numpy(loaders):
    return loaders("numpy")


@pytest.fixture(scope="module")
def final_url(dataset_url):
    """A cache that leaves some ops to the loaders."""
    url = f"{dataset_url}-final"
    live = [RandomCrop(64), HorizontalFlip()]
    cache.warmup(dataset_url, url, size=72, live=live, all_splits_random=True, variants=2, workers=1)
    return url


# What is expected


def places(url, epoch, world=(0, 1), remainder="pad", start=0, lanes=None):
    """(samples, mask) of each batch of a rank."""
    records = [shard.records for shard in open_dataset(url).split("train").variants[0].shards]
    order = EpochOrder(records, SEED, epoch, lanes or default_lanes(World(*world)))
    share = Share(SAMPLES, BATCH, World(*world), remainder, start)
    slots = [share.positions(batch) for batch in range(len(share))]
    return [(order.places_at(positions % SAMPLES).sample, mask) for positions, mask in slots]


@pytest.fixture(scope="module")
def pixels(stored, ops, request):
    """`pixels(source, epoch)` of all samples."""

    def make(source, epoch):
        url = request.getfixturevalue(f"{source}_url")
        held = stored(url, "train", 0 if source == "dataset" else epoch % 2)
        if source == "cache":
            return held.pixels
        dataset = open_dataset(url)
        options = LoaderOptions(ops=ops if source == "dataset" else None, seed=SEED)
        (pipeline,) = plan_decoding(SampleSource(dataset, "train", own_ids(dataset)), options).pipelines
        shape, drawn = dataset.manifest.tensor_shape, pipeline.draw(epoch, np.arange(SAMPLES))
        draws = [[op[sample] for op in drawn] for sample in range(SAMPLES)]
        if shape is None:
            images = held.column("image/encoded")
            return np.stack(
                [pipeline.run_stored(memoryview(image), None, each) for image, each in zip(images, draws, strict=True)]
            )
        images = [np.frombuffer(image, np.uint8).reshape(shape) for image in held.column("image/tensor")]
        return np.stack([pipeline.run(image, each) for image, each in zip(images, draws, strict=True)])

    return functools.cache(make)


def lists(batches):
    """(samples, mask), of which a loader may have left out the latter, as lists."""
    return [[column.tolist() for column in (batch if isinstance(batch, tuple) else (batch,))] for batch in batches]


def real(batches):
    """The samples of (samples, mask) that are no padding."""
    return [int(sample) for samples, mask in batches for sample in samples[mask]]


def by_sample(batches):
    """The image of each sample of (image, ..., sample, mask); none may come twice."""
    found = {}
    for images, *_, samples, mask in batches:
        for row in np.flatnonzero(mask):
            assert int(samples[row]) not in found
            found[int(samples[row])] = images[row]
    return found


def same_share(images, others):
    """Of the samples: those whose images are the same."""
    return np.mean([np.array_equal(image, others[sample]) for sample, image in images.items()])


# Samples, order, pixels


@pytest.mark.all
@pytest.mark.parametrize("source", ["dataset", "cache", "final"])
def test_samples_pixels_and_order(reader, source, stored, pixels, ops, request):
    url, ops = request.getfixturevalue(f"{source}_url"), ops if source == "dataset" else None
    labels_of = stored(url).labels
    for epoch, batches in enumerate(reader.run(contract.epochs, url, 3 if source == "cache" else 2, ops=ops)):
        assert sorted(mask.tolist() for *_, mask in batches) == [[True] * 6 + [False] * 2] + [[True] * 8] * 8
        if reader.kind.exact:
            assert lists(batch[2:] for batch in batches) == lists(places(url, epoch))
        assert by_sample(batches).keys() == set(range(SAMPLES))
        for images, labels, samples, mask in batches:
            assert [a.dtype for a in (images, labels, samples, mask)] == [np.uint8, *[reader.kind.ints] * 2, np.bool_]
            assert labels.tolist() == labels_of[samples].tolist()
            assert images.shape == (BATCH, 64, 64, 3)
            if reader.kind.exact or source == "cache":  # elsewhere windows are drawn
                differ = np.abs(images.astype(int) - pixels(source, epoch)[samples]).mean((1, 2, 3))
                assert differ.max() == 0, f"sample {samples[differ.argmax()]} of epoch {epoch}"


@pytest.mark.first_cases(1)
def test_every_loader_names_its_classes(reader, cache_url):
    mixture = cache_url if reader.name == "tf-direct" else Mixture({cache_url: 1}, classes="offset")
    assert reader.run(contract.class_names, cache_url, mixture) == [("astronaut", "cat", "coffee")] * 2


def test_worker_processes_give_the_same(numpy, dataset_url, pixels, ops):
    (batches,) = numpy.run(contract.epochs, dataset_url, ops=ops, processes=1)
    assert lists(batch[2:] for batch in batches) == lists(places(dataset_url, 0))
    for images, _, samples, _ in batches:
        np.testing.assert_array_equal(images, pixels("dataset", 0)[samples])


def test_a_function_of_main_runs_in_this_process(numpy, dataset_url, pixels, ops):
    images, _, samples, _ = numpy.run(contract.of_main, dataset_url, ops)
    np.testing.assert_array_equal(images, pixels("dataset", 0)[samples] // 2)


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(("remainder", "size"), [("drop", 3), ("pad", 2), ("repeat", 3)])
def test_ranks_share_an_epoch(reader, cache_url, remainder, size):
    ranks = reader.run(contract.of_ranks, cache_url, size, columns=["sample"], remainder=remainder)
    shares = []
    for rank, batches in enumerate(ranks):
        due = places(cache_url, 0, (rank, size), remainder)
        if reader.kind.exact:
            assert lists(batches) == lists(due if remainder == "pad" else [samples for samples, _ in due])
            continue
        assert len(batches) == len(due)
        found = real(batches) if remainder == "pad" else np.concatenate(batches).tolist()
        assert len(found) == (len(set(found)) if remainder == "pad" else len(batches) * BATCH)
        shares += set(found)
    if not reader.kind.exact:
        assert len(shares) == len(set(shares))
        assert len(shares) == (size * len(ranks[0]) * BATCH if remainder == "drop" else SAMPLES)


@pytest.mark.first_cases(1)
def test_epochs_and_seeds_differ_and_a_seed_repeats(reader, final_url):
    """The windows of samples; and the order, if there is one."""
    given = {"split": "val", "columns": ["image", "sample"]}
    one, following = reader.run(contract.epochs, final_url, 2, **given)
    (again,), (other,) = (reader.run(contract.epochs, final_url, **given, seed=seed) for seed in (SEED, SEED + 1))
    images = by_sample(one)
    assert same_share(images, by_sample(again)) == 1
    assert same_share(images, by_sample(following)) < 0.1
    assert same_share(images, by_sample(other)) < 0.1
    order, *orders = (real(batch[1:] for batch in batches) for batches in (one, again, following, other))
    assert order not in orders[1:]
    assert order == orders[0] or not reader.kind.exact


@pytest.mark.first_cases(1)
def test_without_shuffle_a_split_is_read_in_its_order(reader, cache_url):
    (batches,) = reader.run(contract.epochs, cache_url, split="val", shuffle=False, columns=["sample"])
    assert real(batches) == list(range(26))
    assert [mask.sum() for _, mask in batches] == [8, 8, 8, 2]


@pytest.mark.first_cases(1)
def test_repeat_carries_epochs_inside_one_iteration(reader, cache_url):
    batches = reader.run(contract.first, cache_url, 20, columns=["sample"], repeat=True)
    due = [batch for epoch in range(3) for batch in places(cache_url, epoch)][:20]
    if reader.kind.exact:
        assert lists(batches) == lists(due)
    for start in (0, 9):
        assert sorted(real(batches[start : start + 9])) == list(range(SAMPLES))
    assert lists(batches[:9]) != lists(batches[9:18])


@pytest.mark.first_cases(5)
def test_repeat_cut_into_loops_continues_with_the_epoch_after_the_last_batch(loader, cache_url, stored):
    """What is taken ahead of a loop, of whichever epoch, counts for nothing. An epoch is 9 batches."""
    counts = [9, 9, 4, 20, 1]
    loops, state = loader.run(contract.cut, cache_url, counts, columns=["image", "sample"], repeat=True)
    epoch = 0
    for count, batches in zip(counts, loops, strict=True):
        assert len(batches) == count
        for start in range(0, count, 9):
            rest = batches[start : start + 9]
            if loader.kind.exact:
                assert lists(batch[1:] for batch in rest) == lists(places(cache_url, epoch)[: len(rest)])
            held = stored(cache_url, "train", epoch % 2).pixels
            assert all(np.array_equal(image, held[sample]) for sample, image in by_sample(rest).items())
            epoch += 1
    if loader.kind.saves:
        assert (state["epoch"], state["samples"]) == (epoch - 1, min(SAMPLES, len(rest) * BATCH))


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("name", LOADERS)
def test_repeat_goes_on_within_an_epoch_and_with_whole_ones_after_it(loaders, name, states, cache_url):
    given = {"columns": ["sample"], "repeat": True, "state": states["numpy"]}
    loops, _ = loaders(name).run(contract.cut, cache_url, [6, 9, 3], **given)
    due = [places(cache_url, 1, start=24, lanes=16), *(places(cache_url, epoch, lanes=16) for epoch in (2, 3))]
    assert list(map(lists, loops)) == [lists(epoch[:count]) for epoch, count in zip(due, [6, 9, 3], strict=True)]


# Feeds of frameworks, and what is beside them


def rows(batches):
    """[(sample, label, pixels)] of an epoch."""
    columns = [[np.asarray(column) for column in batch] for batch in batches]
    return [
        (int(sample), int(label), image.tobytes())
        for images, labels, samples in columns
        for image, label, sample in zip(images, labels, samples, strict=True)
    ]


def of_keras(url, **options):
    """On JAX and torch; Keras runs on TensorFlow here, whose `to_keras` is `to_tf`."""
    feed = KerasFeed(tpufeed.Loader(url, **OPTIONS | options).stream)
    for _ in range(EPOCHS):
        feed.on_epoch_begin()
        yield rows([feed[number] for number in range(feed.num_batches)])
    feed.close()


def of_sampler(url, ops):
    dataset = tpufeed.TFRecordImages(url, ops=ops, seed=SEED, columns=OPTIONS["columns"])
    sampler = tpufeed.LaneSampler(dataset, 1, 0, seed=SEED)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        yield rows(DataLoader(dataset, BATCH, sampler=sampler, drop_last=True))


def of_grain(url, ops, expected):
    """Grain has its own order: find the samples of each epoch, and return them in the expected order."""
    source = tpufeed.grain_source(url, ops=ops, seed=SEED, columns=OPTIONS["columns"])
    samples = source.to_map_dataset().repeat(EPOCHS)
    for epoch, part in enumerate(expected):
        found = [samples[epoch * len(samples) // EPOCHS + sample] for sample, _, _ in part]
        yield [(int(each["sample"]), int(each["label"]), each["image"].tobytes()) for each in found]


@pytest.mark.all
@pytest.mark.parametrize("source", ["dataset", "cache"])
def test_every_loader_has_the_same_samples(request, loaders, ops, source):
    """The same seeds give two epochs of the same ids, pixels and labels."""
    url, options = request.getfixturevalue(f"{source}_url"), {"ops": ops if source == "dataset" else None}
    given = options | {"remainder": "drop"}
    found = {
        name: list(map(rows, loaders(name).run(contract.epochs, url, EPOCHS, **given)))
        for name in FEEDS
        if name != "tf-direct"
    }
    expected = found["numpy"]
    assert expected[0] != expected[1]
    found |= {"keras": list(of_keras(url, **given)), "LaneSampler": list(of_sampler(url, **options))}
    found["grain"] = list(of_grain(url, **options, expected=expected))
    assert [name for name, epochs in found.items() if epochs != expected] == []


# Columns


@pytest.mark.first_cases(7)
def test_columns_of_strings_and_numbers(loader, cache_url, stored):
    held = stored(cache_url)
    names, files = held.texts("image/class/text"), held.texts("image/filename")
    (batches,) = loader.run(contract.epochs, cache_url, columns=["text", "height", "filename", "sample"])
    for texts, heights, filenames, samples, _ in batches:
        assert texts.tolist() == [names[sample] for sample in samples]
        assert filenames.tolist() == [files[sample] for sample in samples]
        assert {type(text) for text in texts} == {str}
        assert set(heights.tolist()) == {64}


@pytest.mark.first_cases(5)
def test_forms_of_a_batch(loader, cache_url, flat_url, stored):
    (as_dict,) = loader.run(contract.first, cache_url, 1, columns=None, shuffle=False)
    assert list(as_dict) == ["image", "label", "sample", "mask"]
    np.testing.assert_array_equal(as_dict["image"], stored(cache_url).pixels[:8])
    images, labels = loader.run(contract.first, cache_url, 1, columns="default", remainder="drop", shuffle=False)[0]
    np.testing.assert_array_equal(images, as_dict["image"])
    np.testing.assert_array_equal(labels, stored(cache_url).labels[:8])
    alone = loader.run(contract.epochs, flat_url, columns="default", remainder="drop", shuffle=False)[0]
    np.testing.assert_array_equal(np.concatenate(alone), stored(flat_url).pixels[:16])
    *_, (images, mask) = loader.run(contract.epochs, flat_url, columns="default", shuffle=False)[0]
    assert mask.tolist() == [True] * 4 + [False] * 4
    np.testing.assert_array_equal(images[:4], stored(flat_url).pixels[16:])


# States


@pytest.fixture(scope="module")
def states(loaders, cache_url):
    """The state of each loader that has one after 3 batches of the second epoch, as it comes back from a file."""
    texts = {name: json.dumps(loaders(name).run(contract.saved, cache_url, 3, columns=["sample"])) for name in SAVERS}
    return {name: json.loads(text) for name, text in texts.items()}


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("name", LOADERS)
def test_states_go_on_in_every_loader(states, loaders, name, cache_url):
    """All loaders save the same state, as the next test says."""
    state = states["numpy"]
    assert (state["epoch"], state["samples"], state["lanes"]) == (1, 24, 16)
    for world in ((0, 1), (0, 2), (1, 2), (3, 4)):
        given = {"state": state, "world": world, "columns": ["sample"]}
        found = loaders(name).run(contract.epochs, cache_url, 2, **given)
        expected = [places(cache_url, 1, world, start=24, lanes=16), places(cache_url, 2, world, lanes=16)]
        assert list(map(lists, found)) == list(map(lists, expected))


def test_states_of_all_loaders_are_the_same(states):
    assert [saver for saver in SAVERS if states[saver] != states["numpy"]] == []


def test_a_state_that_does_not_fit_is_refused(numpy, states, cache_url):
    text = numpy.run(contract.refusal, cache_url, state=states["numpy"], seed=SEED + 1)
    assert "seed is 3" in text


@pytest.mark.parametrize("name", [name for name, feed in FEEDS.items() if feed.copies])
def test_copies_and_pickles_go_on_where_their_original_is(loaders, name, cache_url):
    taken, rests = loaders(name).run(contract.copied, cache_url, 3, columns=["sample"])
    assert lists(taken) == lists(places(cache_url, 0))
    assert list(map(lists, rests)) == [lists(taken)[3:]] * 3


# Damage, leaving, options


@pytest.mark.first_cases(7)
def test_a_damaged_record_is_named(loader, damage, cache_url):
    damaged = damage(cache_url, 33)
    batches, text, following = loader.run(contract.until_error, damaged.url, columns=["sample"], shuffle=False)
    assert f"{damaged.shard}, record {damaged.record}" in text
    if loader.kind.exact:
        assert real(batches) == list(range(32))
    assert damaged.sample not in real(batches)
    assert following == 9  # the second variant is sound


@pytest.mark.first_cases(7)
def test_after_a_break_the_next_epoch_comes(loader, cache_url, stored):
    batches = loader.run(contract.after_break, cache_url)
    if loader.kind.exact:
        assert lists(batch[2:] for batch in batches) == lists(places(cache_url, 1))
    images = by_sample(batches)
    assert images.keys() == set(range(SAMPLES))
    held = stored(cache_url, "train", 1).pixels
    assert all(np.array_equal(image, held[sample]) for sample, image in images.items())


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("name", "processes"), [*((name, 0) for name in FEEDS), ("numpy", 1)])
def test_nothing_waits_for_the_garbage_collector(loaders, name, processes, cache_url, damage):
    options = {} if name == "tf-direct" else {"processes": processes}
    ways = ["to the end", "break", "close", "exception"] if name == "numpy" else ["break", "exception"]
    given = [*ways, "damaged record"], damage(cache_url, 33).url
    assert loaders(name).run(contract.left_uncollected, cache_url, *given, **options) == {}


@pytest.mark.first_cases(11)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["Label"]}, "'Label'"),
        ({"batchsize": 3}, "'batchsize'"),
        ({"batch_size": 0}, "batch_size"),
        ({"world": (0, 3), "lanes": 4}, "lanes=24"),
        ({"batch_size": 72, "remainder": "drop"}, "72"),
        ({"batch_size": 72, "remainder": "drop", "repeat": True}, "72"),
    ],
)
def test_options_that_do_not_fit_are_refused_alike(reader, loaders, cache_url, options, message):
    text = reader.run(contract.refusal, cache_url, **options)
    assert message in text
    if "batchsize" not in options:  # the list of which has those that a loader alone knows
        assert text == loaders("numpy").run(contract.refusal, cache_url, **options)
