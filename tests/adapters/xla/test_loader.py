"""to_xla under real torch_xla on CPU devices: what it alone can get wrong. The scripts write down what it does there.

xla_four_devices.py has a rank for each device, xla_one_device.py also wraps other loaders, xla_lightning.py trains, and
xla_spmd.py is one process that feeds four devices. All are forks of one process that has imported torch_xla.
"""

import json
import pickle
import re
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed import cache
from tpufeed.images import Resize

ml_dtypes = lazy("ml_dtypes")

pytestmark = pytest.mark.timeout(1800)

HERE = Path(__file__).parent
RANKS = range(4)
BY_ROWS = ["{devices=[4,1,1,1]0,1,2,3}", "{devices=[4]0,1,2,3}"]
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@pytest.fixture(scope="module")
def ran(run_forks, dataset_url, cache_url, flat_url, damage, tmp_path_factory):
    """The folder of what the scripts wrote, what xla_spmd.py printed, and the damaged record that a rank met."""
    out = tmp_path_factory.mktemp("xla")
    damaged, incomplete = damage(cache_url, 28), out / "incomplete"
    shutil.copytree(cache_url, incomplete)
    (incomplete / "train-v0-00000-of-00006.tfrecord").unlink()
    coded = out / "coded"
    cache.warmup(dataset_url, coded, ops=[Resize((48, 64))], encode="dct", workers=1)
    commands = [
        ("xla_four_devices.py", 4, dataset_url, cache_url, damaged.url, incomplete, out),
        ("xla_one_device.py", 1, cache_url, flat_url, out / "one.pickle"),
        ("xla_spmd.py", 4, cache_url, coded),
    ]
    runs = [
        {"command": [str(HERE / script), *map(str, given)], "env": {"CPU_NUM_DEVICES": str(devices)}}
        for script, devices, *given in commands
    ]
    found = run_forks("torch_xla", runs, out, PJRT_DEVICE="CPU", PYTHONFAULTHANDLER="1")
    for status, output, said in found:
        assert status == 0, output + said
    return out, found[2][1], damaged


@pytest.fixture(scope="module")
def four(ran):
    """What each rank of xla_four_devices.py wrote down, and the damaged record that one of them met."""
    out, _, damaged = ran
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in RANKS], damaged


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


@pytest.mark.parametrize("source", ["dataset", "cache"])
def test_each_gets_what_the_loader_gives_its_rank(four, source, dataset_url, cache_url, ops):
    ranks, _ = four
    assert [(found["rank"], found["size"], found["length"]) for found in ranks] == [(rank, 4, 3) for rank in RANKS]
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
            assert "torch_xla.launch" in message


def test_frameworks_that_disagree_are_named(four):
    for found in four[0]:
        message, by_hand = found["torch"]
        assert message.startswith("torch_xla has 4 and torch.distributed has 2")
        assert by_hand == 7


def test_an_epoch_that_nobody_moves_is_named_in_the_second_one(four):
    """By each rank, which reads a quarter of the samples."""
    assert [found["frozen"] for found in four[0]] == [[0, 4]] * 4


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
        ("incomplete", "rank 0: ShardError: .*train-v0-00000-of-00006.tfrecord"),
        ("lanes", "4 of 4 ranks .*lanes=16"),
        ("no batches", "4 of 4 ranks .* 18 .* 17"),
        ("seeds", "seed 0.*seed 3.* rank 3"),
        ("batches", "batches: 3 on 3 of 4 ranks.* 4 on rank 0"),
        ("unequal sampler", "batches: 4 on 3 of 4 ranks.* 5 on rank 3"),
        ("no length", "4 of 4 ranks .*length"),
        ("iter fails", "rank 3: OSError"),
        ("first batch fails", "rank 0: ZeroDivisionError"),
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
        assert re.search("/nothing" if rank == 2 else r"4 ranks only \[0, 1, 3\]", text), text


def test_ranks_that_give_their_world_by_hand_are_taken_at_their_word(four, cache_url):
    ranks, _ = four
    for found in ranks:
        (epoch,) = found["by hand"]
        with tpufeed.Loader(cache_url, columns=["image", "sample"], batch_size=5) as loader:
            assert [samples for samples, _ in epoch["batches"]] == [samples.tolist() for _, samples in loader]
    assert [len(found["some"][0]["batches"]) for found in ranks] == [0, 0, 3, 0]  # with check_ranks=False


def test_a_source_that_breaks_its_word_is_an_error(four):
    ranks, _ = four
    for rank, found in enumerate(ranks):
        (short,), (long,) = found["too short"], found["too long"]
        assert (len(short["batches"]), len(long["batches"])) == ((2, 3) if rank == 1 else (3, 3))
        if rank == 1:
            assert "2 batches" in short["error"][1]
            assert ", 3" in long["error"][1]
        else:
            assert short["error"] is long["error"] is None


def test_loops_that_are_left_early_leave_no_thread(four):
    ranks, _ = four
    assert [found["threads"] for found in ranks] == [[]] * 4


# One device


@pytest.fixture(scope="module")
def found(ran):
    """What xla_one_device.py wrote down."""
    return pickle.loads((ran[0] / "one.pickle").read_bytes())


def test_batches_that_are_kept_on_the_device_stay_what_they_were(found, cache_url, stored):
    kept = found["kept"]
    assert len(kept) == 4 * 14
    for epoch, ((_, images), (_, samples)) in kept:
        np.testing.assert_array_equal(images, stored(cache_url, "train", epoch % 2).pixels[samples])


def test_a_device_that_is_none_is_an_error_without_an_echo(found):
    message, unraisable = found["wrong device"]
    assert "nonsense" in message
    assert unraisable == []


def test_claims_cross_by_collectives(found):
    assert found["over collectives"]


def test_a_loader_of_the_users_that_keeps_no_state_has_an_empty_one(found):
    plain, message = found["states of others"]
    assert plain == {}
    assert "DataLoader" in message


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


def test_steps_that_normalise_compile_once_and_fetch_nothing(found):
    counts, fetched, made = found["compiled"]
    assert counts == [1, 0, 0, 0]
    assert fetched == 0
    assert made == ("xla", "torch.bfloat16")


# Around other loaders


@pytest.mark.parametrize(
    ("case", "seen", "message"),
    [
        ("none", [0, 1], "LoaderError: batch 2"),
        ("sending", [0, 1], "Error"),
        ("a worker", [0, 2], "ValueError"),
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
        "unsigned": {
            each: ("xla", "Tensor", f"torch.{each}", [0, 1, 60000]) for each in ("uint16", "uint32", "uint64")
        },
    }


def test_leaving_a_source_that_is_stuck_does_not_hang(found):
    seen, messages, threads = found["stuck"]
    assert seen == [0, 1]
    assert len(messages) == 1
    assert "0.3 s" in messages[0]
    assert threads == []  # when it was released


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("iterator", "list_iterator"),
        ("dataset", "method"),
        ("wrapped", "MpDeviceLoader"),
        ("options", "'batch_size'"),
        ("queue", "device_prefetch"),
        ("sharding", "SPMD"),
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


# One process that is the world of four devices: SPMD


@pytest.fixture(scope="module")
def spmd(ran):
    return json.loads(ran[1].splitlines()[-1])


@pytest.fixture(scope="module")
def sums(cache_url):
    """Of the columns of each batch that Loader gives."""
    options = {"columns": ["image", "label", "sample"], "batch_size": 8, "shuffle": False, "processes": 0}
    with tpufeed.Loader(cache_url, **options) as loader:
        return [[int(column.astype(np.int64).sum()) for column in batch] for batch in loader]


def test_under_spmd_one_process_is_the_world(spmd, cache_url):
    assert spmd["devices"] == 4
    assert spmd["length"] == 7
    with tpufeed.Loader(cache_url, columns=["sample"], batch_size=10, processes=0, world=(0, 1)) as loader:
        assert spmd["epochs"] == [np.concatenate(list(loader)).tolist() for _ in range(2)]


@pytest.mark.parametrize(
    ("case", "form", "specs", "last"),
    [
        ("dict", "tuple", [*BY_ROWS, "{replicated}"], 8),
        ("batches of dicts", "dict", [*BY_ROWS, "{replicated}"], 8),
        ("one for all", "tuple", [*BY_ROWS, BY_ROWS[1]], 2),
        ("no minibatch", "tuple", [*BY_ROWS, BY_ROWS[1]], 2),
        ("device ops", "tuple", [*BY_ROWS, "{replicated}"], 8),  # they mirror, so that sums stay
        ("device ops, one for all", "tuple", [*BY_ROWS, BY_ROWS[1]], 2),
    ],
)
def test_every_column_is_split_as_its_spec_says(spmd, sums, case, form, specs, last):
    found = spmd["cases"][case]
    assert found["error"] is None
    assert (found["form"], found["specs"]) == (form, specs)
    assert found["shards"] == [[2] * 4, [2] * 4, [last] * 4]
    assert found["batches"] == sums


def test_coefficients_are_split_by_rows_as_the_images_made_of_them(spmd):
    found = spmd["cases"]["coefficients"]
    assert (found["error"], found["specs"]) == (None, [*BY_ROWS, "{replicated}"])
    assert found["shards"] == [[2] * 4, [2] * 4, [8] * 4]


def test_unsigned_integers_are_split_as_their_spec_says(spmd):
    found = spmd["cases"]["unsigned"]
    assert (found["error"], found["specs"], found["batches"]) == (None, BY_ROWS[:1], [[sum(range(65000, 65512))]])
    assert found["shards"] == [[2] * 4]


def test_a_mesh_of_two_axes_copies_the_parts_of_images_and_leaves_vectors_whole(spmd, sums):
    found = spmd["cases"]["two axes"]
    assert (found["error"], found["batches"]) == (None, sums)
    assert found["shards"] == [[4] * 4, [8] * 4, [8] * 4]


def test_columns_without_a_spec(spmd, sums):
    """Every device holds everything without a sharding; strings want no spec; names are for lists in their order."""
    whole, strings, lists = (spmd["cases"][case] for case in ("none", "strings", "a DataLoader"))
    assert whole["shards"] == [[8] * 4] * 3
    assert whole["batches"] == sums
    assert strings["batches"] == lists["batches"] == [batch[:2] for batch in sums]
    assert (lists["form"], lists["specs"], lists["shards"]) == ("list", BY_ROWS, [[2] * 4] * 2)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("missing", "OptionError: .*'sample'"),
        ("other axes", "OptionError: .*'label'.* 4 axes"),
        ("two axes, each", "OptionError: .*'label'.*None"),
        ("two axes, minibatch", "OptionError: .*2 parts for 4 devices"),
        ("no spec", "OptionError: .*ShardingSpec.* 3$"),
        ("not divisible", "OptionError: .*batch of 6 .*4 devices"),
    ],
)
def test_what_does_not_fit_is_an_error_before_the_first_step(spmd, case, message):
    found = spmd["cases"][case]
    assert found["batches"] == []
    assert re.match(message, found["error"])


def test_a_last_batch_that_cannot_be_split_is_raised_after_the_others(spmd):
    found = spmd["cases"]["a last batch"]
    assert len(found["batches"]) == 1
    assert "divisible" in found["error"]


# Lightning, whose own handling of dataloaders on XLA devices runs. The script only answers whether there is a TPU, and
# stands in for collectives on four CPU devices: torch_xla has none there.


def lightning_epochs(url, rank=0, size=1):
    with tpufeed.Loader(url, columns=["sample"], batch_size=5, world=(rank, size), processes=0) as loader:
        return {str(epoch): [samples.tolist() for samples in loader] for epoch in range(2)}


def test_a_module_trains_on_one_device(found, cache_url):
    one = found["lightning"]
    assert found["mixture's dataset"] is None  # Lightning asks each loader for it before it trains
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
