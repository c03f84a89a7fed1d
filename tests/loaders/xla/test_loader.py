"""to_xla under real torch_xla on CPU devices: what it alone can get wrong. The scripts write down what it does there.

xla_four_devices.py has a rank for each device, xla_one_device.py also wraps other loaders, xla_lightning.py trains.
"""

import json
import pickle
import re
import shutil
import zlib

import ml_dtypes
import numpy as np
import pytest

import tpufeed

RANKS = range(4)
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@pytest.fixture(scope="module")
def four(run_script, dataset_url, cache_url, damage, tmp_path_factory):
    """What each rank of xla_four_devices.py wrote down, and the damaged record that one of them met."""
    out = tmp_path_factory.mktemp("xla-four")
    damaged, incomplete = damage(cache_url, 28), out / "incomplete"
    shutil.copytree(cache_url, incomplete)
    (incomplete / "train-v0-00000-of-00006.tfrecord").unlink()
    run_script("xla/xla_four_devices.py", dataset_url, cache_url, damaged.url, incomplete, out, devices=4)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in RANKS], damaged


def samples_of(epoch):
    return [sample for samples, *_ in epoch["batches"] for sample in samples]


def host_epochs(url, rank, **options):
    """What Loader gives a rank, in the form in which the scripts write it down."""
    given = {"columns": ["image", "sample"], "batch_size": 5, "world": (rank, 4)}
    with tpufeed.Loader(url, **given | options) as loader:
        return [
            {
                "batches": [[samples.tolist(), [zlib.crc32(image) for image in images]] for images, samples in loader],
                "error": None,
            }
            for _ in range(2)
        ]


# Four devices


def test_four_devices_are_four_ranks(four):
    ranks, _ = four
    assert [(found["rank"], found["size"], found["length"]) for found in ranks] == [(rank, 4, 3) for rank in RANKS]


@pytest.mark.parametrize("source", ["dataset", "cache"])
def test_together_they_see_each_sample_of_an_epoch_once(four, source):
    """The dataset is read with remainder="repeat": 4 batches of 5 on 4 ranks, so 10 of 70 come twice."""
    ranks, _ = four
    batches = {"dataset": 4, "cache": 3}[source]
    epochs = []
    for epoch in (0, 1):
        parts = [found[source][epoch] for found in ranks]
        assert [len(part["batches"]) for part in parts] == [batches] * 4
        assert all(len(samples) == 5 for part in parts for samples, _ in part["batches"])
        samples = sorted(sample for part in parts for sample in samples_of(part))
        assert len(samples) == batches * 20
        assert len(set(samples)) == (70 if source == "dataset" else 60)
        epochs.append([samples_of(part) for part in parts])
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("source", ["dataset", "cache"])
def test_each_gets_what_the_loader_gives_its_rank(four, source, dataset_url, cache_url, ops):
    ranks, _ = four
    for rank in RANKS:
        if source == "dataset":
            expected = host_epochs(dataset_url, rank, ops=ops, remainder="repeat")
        else:
            expected = host_epochs(cache_url, rank)
        assert ranks[rank][source] == expected


@pytest.mark.parametrize(
    "way", ["MpDeviceLoader", "ParallelLoader", "to_xla", "thread", "copy", "Loader", "LaneSampler"]
)
def test_a_host_loader_of_a_rank_reads_its_share_in_whatever_thread(four, way, cache_url):
    """torch_xla's own loaders iterate it in a thread that torch_xla takes for the first rank's."""
    ranks, _ = four
    for rank in RANKS:
        found, _ = ranks[rank]["host loaders"]
        (expected, _) = host_epochs(cache_url, rank)
        assert found[way] == [samples for samples, _ in expected["batches"]]


def test_a_loader_that_no_rank_made_is_refused(four):
    for found in four[0]:
        _, errors = found["host loaders"]
        assert list(errors) == ["launched", "made by a stranger"]
        for message in errors.values():
            assert message.startswith("torch_xla's ranks are threads of this process, and this was made outside")
            assert message.endswith("make it in the function that torch_xla.launch runs, or give world=(rank, size)")


def test_frameworks_that_disagree_are_named(four):
    for found in four[0]:
        message, by_hand = found["torch"]
        assert message.startswith("torch_xla has 4 and torch.distributed has 2 ranks: ")
        assert message.endswith("or give world=(rank, size)")
        assert by_hand == 7


def test_an_epoch_that_nobody_moves_is_named_in_the_second_one(four):
    """By each rank, which reads a quarter of the samples."""
    assert [found["frozen"] for found in four[0]] == [[0, 4]] * 4


def test_evaluation_on_four_devices_sees_each_sample_once(four):
    """26 samples in batches of 4: two batches a rank, 6 places are padding."""
    ranks, _ = four
    seen = []
    for found in ranks:
        (epoch,) = found["evaluation"]
        assert len(epoch["batches"]) == 2
        for samples, _, mask in epoch["batches"]:
            assert len(samples) == len(mask) == 4
            seen += [sample for sample, real in zip(samples, mask, strict=True) if real]
    assert sorted(seen) == list(range(26))


def test_damage_reaches_the_loop_of_its_rank_after_the_batches_before_it(four, cache_url):
    ranks, damaged = four
    failed = [rank for rank in RANKS if ranks[rank]["damaged"][0]["error"]]
    assert len(failed) == 1
    for rank in RANKS:
        expected = host_epochs(cache_url, rank, lanes=4, shuffle=False)
        first, second = ranks[rank]["damaged"]
        if rank in failed:
            name, message = first["error"]
            assert name == "RecordError"
            assert f"{damaged.shard}, record {damaged.record}, byte {damaged.byte}" in message
            good = expected[0]["batches"]
            position = next(number for number, (samples, _) in enumerate(good) if damaged.sample in samples)
            assert position > 0
            assert first["batches"] == good[:position]
        else:
            assert first == expected[0]
        assert second == expected[1]  # variant 1 is sound


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("incomplete", r"1 of 4 ranks .* rank 0: ShardError: .*train-v0-00000-of-00006.tfrecord: No such file"),
        ("lanes", "4 of 4 ranks .* 6 lanes cannot be dealt to 4 ranks; give lanes=16"),
        ("no batches", "4 of 4 ranks .* fill no batch of 18 .* give a batch_size of at most 17"),
        ("seeds", "the ranks disagree on order: .*seed 0.* but .*seed 3.* on rank 3"),
        ("batches", "the ranks disagree on batches: 3 on 3 of 4 ranks, but 4 on rank 0"),
        ("unequal sampler", "the ranks disagree on batches: 4 on 3 of 4 ranks, but 5 on rank 3"),
        ("no length", "4 of 4 ranks .* has no length"),
        ("iter fails", "1 of 4 ranks .* rank 3: OSError: no such stream"),
        ("first batch fails", "1 of 4 ranks .* rank 0: ZeroDivisionError"),
    ],
)
def test_what_would_part_the_ranks_is_raised_on_all_before_the_first_step(four, case, message):
    ranks, _ = four
    texts = set()
    for found in ranks:
        (epoch,) = found[case]
        assert epoch["batches"] == []
        name, text = epoch["error"]
        assert name == "LoaderError"
        assert re.search(message, text), text
        texts.add(text)
    assert len(texts) == 1


def test_a_rank_that_cannot_make_its_loader_is_missed_by_the_others(four):
    ranks, _ = four
    for rank, found in enumerate(ranks):
        name, text = found["unmade"]
        assert name == ("DatasetNotFoundError" if rank == 2 else "LoaderError")
        assert re.search("/nothing" if rank == 2 else r"of 4 ranks only \[0, 1, 3\] came to iterate", text), text


def test_ranks_that_give_their_world_by_hand_are_taken_at_their_word(four, cache_url):
    ranks, _ = four
    for found in ranks:
        (epoch,) = found["by hand"]
        with tpufeed.Loader(cache_url, columns=["image", "sample"], batch_size=5) as loader:
            assert [samples for samples, _ in epoch["batches"]] == [samples.tolist() for _, samples in loader]


def test_a_loader_that_some_iterate_is_not_compared(four):
    ranks, _ = four
    assert [len(found["some"][0]["batches"]) for found in ranks] == [0, 0, 3, 0]


def test_a_distributed_sampler_of_the_users_deals_every_sample_once(four):
    """70 samples: DistributedSampler repeats two of them."""
    ranks, _ = four
    for epoch in (0, 1):
        seen = [sample for found in ranks for sample in samples_of(found["sampler"][epoch])]
        assert len(seen) == 72
        assert len(set(seen)) == 70
    assert ranks[0]["sampler"][0] != ranks[0]["sampler"][1]


def test_a_source_that_breaks_its_word_is_an_error(four):
    ranks, _ = four
    for rank, found in enumerate(ranks):
        (short,), (long,) = found["too short"], found["too long"]
        assert (len(short["batches"]), len(long["batches"])) == ((2, 3) if rank == 1 else (3, 3))
        if rank == 1:
            assert "ended after 2 batches, but its length is 3" in short["error"][1]
            assert "more batches than its length, 3" in long["error"][1]
        else:
            assert short["error"] is long["error"] is None


def test_loops_that_are_left_early_leave_no_thread(four):
    ranks, _ = four
    assert [found["threads"] for found in ranks] == [[]] * 4


# One device


@pytest.fixture(scope="module")
def found(run_script, cache_url, flat_url, tmp_path_factory):
    """What xla_one_device.py wrote down."""
    out = tmp_path_factory.mktemp("xla") / "one.pickle"
    run_script("xla/xla_one_device.py", cache_url, flat_url, out)
    return pickle.loads(out.read_bytes())


def test_batches_that_are_kept_on_the_device_stay_what_they_were(found, cache_url, stored):
    kept = found["kept"]
    assert len(kept) == 4 * 14
    for epoch, ((_, images), (_, samples)) in kept:
        np.testing.assert_array_equal(images, stored(cache_url, "train", epoch % 2).pixels[samples])


def test_a_device_that_is_none_is_an_error_without_an_echo(found):
    message, unraisable = found["wrong device"]
    assert "nonsense" in message
    assert unraisable == []


def test_floats_are_the_reference_rounded_to_bfloat16(found):
    """Computed in float32 in another order (x * scale + shift): a value at a rounding boundary may be one bit off."""
    pixels, dtypes, made = found["floats"]
    mean, std = (np.array(IMAGENET[name], np.float32) for name in ("mean", "std"))
    exact = (pixels.astype(np.float32) / 255 - mean) / std
    expected = exact.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert {str(dtype) for dtype, _ in (dtypes["NCHW"], dtypes["NHWC"])} == {"torch.bfloat16"}
    assert {device for _, device in dtypes.values()} == {"xla"}
    for value in (made["NHWC"], made["NCHW"].transpose(0, 2, 3, 1)):
        assert value.shape == pixels.shape
        np.testing.assert_allclose(value, expected, rtol=2**-7, atol=1e-6)
        assert (value == expected).mean() > 0.999
    assert str(dtypes["own"][0]) == "torch.float32"
    own = (pixels.astype(np.float32) / 255 - np.float32([0.1, 0.2, 0.3])) / np.float32([1, 0.5, 0.25])
    np.testing.assert_allclose(made["own"].transpose(0, 2, 3, 1), own, atol=1e-6)


def test_steps_that_flip_and_shift_compile_once_and_fetch_nothing(found):
    counts, fetched, pixels, host, made = found["compiled"]
    assert counts == [1, 0, 0, 0]
    assert fetched == 0
    np.testing.assert_array_equal(pixels, host)
    assert made == ("xla", "torch.bfloat16")


def test_claims_cross_by_collectives(found):
    assert found["over collectives"]


# Around other loaders


@pytest.mark.parametrize(
    ("case", "seen", "message"),
    [
        ("none", [0, 1], "LoaderError: batch 2 of"),
        ("sending", [0, 1], "Error"),
        ("a worker", [0, 2], "ValueError: Caught ValueError in DataLoader worker process 0"),
    ],
)
def test_failures_are_raised_in_the_loop_after_the_batches_before_them(found, case, seen, message):
    cases, threads = found["failing"]
    batches, error = cases[case]
    assert batches == seen
    assert message in error
    assert threads == []


def test_batches_keep_their_form_and_what_is_no_tensor_stays(found):
    image = ("xla", "Tensor", "torch.int64", [[0, 1, 2], [3, 4, 5]])
    label = ("xla", "Tensor", "torch.float32", [1.5, 2.5])
    small = ("xla", "Tensor", "torch.uint8", [[0, 1, 2], [3, 4, 5]])
    named = {"image": image, "label": label}
    assert found["forms"] == {
        "tuple": ("tuple", [image, label]),
        "list": ("list", [image, label]),
        "namedtuple": ("Pair", [image, label]),
        "dict": named,
        "ordered": named,
        "user dict": named,
        "nested": {"a": ("list", [image, ("tuple", [label, "text", None, 7])]), "b": {"c": small}},
        "strings": ("tuple", [image, ["x", "y"], ["x", "y"]]),
        "no tensor": ("tuple", ["x", "y"]),
        "subclass": ("tuple", [label, image]),
        "transposed": ("xla", "Tensor", "torch.int64", [[0, 3], [1, 4], [2, 5]]),
    }


def test_leaving_a_source_that_is_stuck_does_not_hang(found):
    seen, messages, threads = found["stuck"]
    assert seen == [0, 1]
    (message,) = messages
    assert "still busy with a batch after 0.3 s" in message
    assert threads == []  # when it was released


def test_a_loader_of_the_users_that_keeps_no_state_has_an_empty_one(found):
    plain, message = found["states of others"]
    assert plain == {}
    assert message.startswith("a DataLoader keeps no state")


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("iterator", "iterated again and again.* not list_iterator"),
        ("dataset", "not method"),
        ("wrapped", "not MpDeviceLoader"),
        ("options", "device_loader has no option 'batch_size'"),
        ("queue", "device_prefetch is a whole number, at least 1, not 0"),
        ("sharding", "sharding is for SPMD"),
    ],
)
def test_what_cannot_be_taken_is_refused(found, case, message):
    assert re.search(message, found["refused"][case])


def test_accelerate_leaves_it_as_it_is_and_it_counts(found):
    name, devices, stats, skipped = found["counted"]
    assert (name, devices) == ("XlaFeed", ["xla"] * 7)
    assert (stats["batches"], stats["host"]["batches"]) == (7, 7)
    assert stats["transfer_bytes"] == 7 * 10 * (64 * 64 * 3 + 8)
    assert stats["wait_seconds"] > 0
    assert stats["transfer_seconds"] > 0
    assert "load_state_dict" in skipped


# Lightning, whose own handling of dataloaders on XLA devices runs. The script only answers whether there is a TPU, and
# stands in for collectives where there are four CPU devices, on which torch_xla has none.


def lightning_epochs(url, rank=0, size=1):
    with tpufeed.Loader(url, columns=["sample"], batch_size=5, world=(rank, size), processes=0) as loader:
        return {str(epoch): [samples.tolist() for samples in loader] for epoch in range(2)}


def test_a_mixture_has_no_dataset_that_trainers_could_take(found):
    """Lightning asks each loader for it before it trains."""
    assert found["mixture's dataset"] is None


def test_a_module_trains_on_one_device(found, cache_url):
    one = found["lightning"]
    assert one["whole"]["strategy"] == "SingleDeviceXLAStrategy"
    assert one["whole"]["loader"] == "XlaFeed"
    assert one["whole"]["kept by XLAStrategy"]
    assert one["whole"]["epochs"] == lightning_epochs(cache_url)  # Lightning's own look at it costs no epoch
    assert one["whole"]["validated"] == [*range(26)] * 2


def test_a_checkpoint_in_mid_epoch_goes_on_with_exactly_the_rest(found, cache_url):
    one = found["lightning"]
    left, resumed = one["left"], one["0"]["epochs"]
    assert len(left["1"]) == 3
    assert {"0": left["0"], "1": left["1"] + resumed["1"]} == lightning_epochs(cache_url)
    assert list(resumed) == ["1"]


@pytest.mark.long
def test_a_module_trains_on_four_devices_without_a_sampler(run_script, cache_url, tmp_path):
    run_script("xla/xla_lightning.py", cache_url, 4, tmp_path, devices=4)
    validated = []
    for rank in range(4):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert (found["strategy"], found["loader"]) == ("XLAStrategy", "XlaFeed")
        assert found["epochs"] == lightning_epochs(cache_url, rank, 4)
        validated += found["validated"]
    assert sorted(validated) == sorted([*range(26)] * 2)
