"""to_xla on one CPU device: its batches, states, copies, errors, and other loaders that it wraps.

xla_one_device.py, xla_wrapping.py and xla_lightning.py write down what it does. And what torch_xla and tensorflow do to
one another.
"""

import json
import os
import re
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

import tpufeed
from tpufeed.errors import LoaderError
from tpufeed.loaders.rank_check import Rendezvous

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def test_batches_have_the_columns_that_were_asked_for(one_device, cache_url, flat_url, stored):
    kinds = one_device[0]["kinds"]
    images, labels = kinds["default"]
    np.testing.assert_array_equal(images[1], stored(cache_url).pixels[:8])
    np.testing.assert_array_equal(labels[1], stored(cache_url).labels[:8])
    assert {name: device for name, (device, _) in kinds["dict"].items()} == dict.fromkeys(
        ["image", "label", "sample", "mask"], "xla"
    )
    assert kinds["dict"]["mask"][1].dtype == np.bool_
    images, names, samples = kinds["strings"]
    assert images[0] == samples[0] == "xla"
    assert names.tolist() == stored(cache_url).texts("image/filename")[:8]  # on the host, beside its samples
    assert kinds["labels alone"][1].tolist() == stored(cache_url).labels[:8].tolist()
    device, images = kinds["unlabelled"]
    assert device == "xla"
    np.testing.assert_array_equal(images, stored(flat_url).pixels[:8])
    images, mask = kinds["unlabelled, padded"]
    assert mask[1].all()


def test_batches_that_are_kept_on_the_device_stay_what_they_were(one_device, cache_url, stored):
    kept = one_device[0]["kept"]
    assert len(kept) == 4 * 14
    for epoch, ((_, images), (_, samples)) in kept:
        np.testing.assert_array_equal(images, stored(cache_url, "train", epoch % 2).pixels[samples])


def test_which_epoch_is_next_does_not_depend_on_how_far_a_thread_came(one_device, cache_url):
    """Else ranks that leave an iteration early could part ways."""
    with tpufeed.Loader(cache_url, columns=["sample"], batch_size=10) as loader:
        epochs = [[samples.tolist() for samples in loader] for _ in range(21)]
    found, replaced = one_device[0]["epochs"]
    for number, batches in enumerate(found):
        expected = epochs[20] if number in (2, 4) else epochs[0]  # the first 20 were never begun
        assert [batch.tolist() for batch in batches] == expected
    assert replaced == ["another iteration was begun"] * 2


def test_every_way_to_leave_a_loop_leaves_no_thread(one_device):
    left = one_device[0]["leaving"]
    assert left.pop("batches after that") == 35
    assert left.pop("asked after close").startswith("the loader was closed")
    assert left == {"break": [], "exception": [], "close": [], "forgotten": []}


def test_damage_is_raised_in_the_loop_after_the_batches_before_it(one_device):
    found, damaged = one_device
    failing = found["failing"]
    assert failing["delivered"] == list(range(damaged.sample // 5 * 5))
    assert f"{damaged.shard}, record {damaged.record}, byte {damaged.byte}: the CRC" in failing["message"]
    assert failing["after"] == "ended"
    assert failing["next epoch"] == 14


def test_its_traceback_leads_to_the_source_and_no_thread_stays(one_device):
    failing = one_device[0]["failing"]
    assert failing["frames"][0] == "failing"
    assert "decode" in failing["frames"]
    assert failing["threads at the error"] == failing["threads"] == []


def test_a_device_that_is_none_is_an_error_without_an_echo(one_device):
    message, unraisable = one_device[0]["wrong device"]
    assert "nonsense" in message
    assert unraisable == []


def test_length_is_that_of_an_epoch(one_device):
    assert one_device[0]["lengths"] == [8, 9, 9]


def test_masks_boxes_and_labels_of_several_classes_are_those_of_the_loader(one_device):
    names, expected, found = one_device[0]["samples"]
    for name, wanted, (device, values) in zip(names[:-1], expected, found, strict=False):
        assert (name, device) == (name, "xla")
        np.testing.assert_array_equal(values, wanted, err_msg=name)
    assert names[-1] == "filename"
    assert found[-1].tolist() == expected[-1].tolist()


def test_floats_are_the_reference_rounded_to_bfloat16(one_device):
    """Computed in float32 in another order (x * scale + shift): a value at a rounding boundary may be one bit off."""
    pixels, dtypes, made = one_device[0]["floats"]
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


# Around other loaders


@pytest.fixture
def found(one_device):
    return one_device[0]["wrapping"]


@pytest.fixture(scope="module")
def epochs(cache_url):
    with tpufeed.Loader(cache_url, columns=["sample"], batch_size=10, processes=0) as loader:
        return [[samples.tolist() for samples in loader] for _ in range(4)]


@pytest.mark.parametrize(
    ("case", "seen", "message"),
    [
        ("in the middle", [0, 1], "ValueError: rotten"),
        ("at once", [], "ValueError: rotten"),
        ("opening", [], "OSError: no such stream"),
        ("none", [0, 1], "LoaderError: batch 2 of the source is None"),
        ("sending", [0, 1], "Error"),
        ("a worker", [0, 2], "ValueError: Caught ValueError in DataLoader worker process 0"),
    ],
)
def test_failures_are_raised_in_the_loop_after_the_batches_before_them(found, case, seen, message):
    cases, threads = found["failing"]
    batches, error, _ = cases[case]
    assert batches == seen
    assert message in error
    assert threads == []


def test_an_error_keeps_its_cause(found):
    assert found["failing"][0]["in the middle"][2] == "KeyError('the reason')"


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
    assert messages == ["the source is still busy with a batch after 0.3 s; its thread is left to it"]
    assert threads == []  # when it was released


def test_a_state_counts_what_the_loop_was_handed(found, epochs):
    states, rests = found["states"]
    assert [samples for _, samples in states[1:]] == epochs[0] + epochs[1]
    places = [(state["epoch"], state["samples"]) for state, _ in states]
    assert places == [(0, 0), *((epoch, 10 * batches) for epoch in (0, 1) for batches in range(1, 8))]
    assert rests == [epochs[0][3:], epochs[1], epochs[1][3:], epochs[1]]


def test_a_state_of_a_users_loader_does_too(found):
    seen, state, taken, rest, plain, message = found["states of others"]
    assert seen == [0, 1]
    assert state == {"taken": 2}
    assert taken > 2
    assert rest == [2, 3, 4, 5]
    assert plain == {}
    assert message.startswith("a DataLoader keeps no state")


def test_an_epoch_can_be_named_until_it_begins(found, epochs):
    named, message, of_sampler = found["epochs"]
    assert named == epochs[3]
    assert message.startswith("set_epoch or load_state_dict was called in the middle of this epoch")
    assert of_sampler == [4]


def test_a_loader_can_be_copied_and_pickled_between_epochs(found, epochs):
    assert found["copies"] == [*[epochs[0]] * 3, epochs[1]]


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
    assert "go on in mid-epoch by its load_state_dict(state)" in skipped


def test_a_torch_loader_can_be_wrapped(found, epochs):
    assert found["to_torch"] == epochs[0]


def test_claims_cross_by_collectives(found):
    assert found["over collectives"]


def test_steps_that_flip_and_shift_compile_once_and_fetch_nothing(found):
    counts, fetched, pixels, host, made = found["compiled"]
    assert counts == [1, 0, 0, 0]
    assert fetched == 0
    np.testing.assert_array_equal(pixels, host)
    assert made == ("xla", "torch.bfloat16")


# Ranks that are threads


def exchange_all(meeting, ranks, size, rounds=1):
    """What each of `ranks` was given, or the error."""
    found = {}

    def run(rank):
        try:
            found[rank] = [meeting.exchange(b"%d of %d" % (rank, number), rank, size) for number in range(rounds)]
        except LoaderError as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_ranks_meet_again_and_again():
    found = exchange_all(Rendezvous(), range(4), 4, rounds=50)
    rounds = [[b"%d of %d" % (rank, number) for rank in range(4)] for number in range(50)]
    assert [found[rank] for rank in range(4)] == [rounds] * 4


def test_a_rank_that_does_not_come_is_an_error_for_the_others_and_the_next_meeting_is_held():
    meeting = Rendezvous(patience_seconds=1)
    found = exchange_all(meeting, (0, 2), 3)
    assert list(found) in ([0, 2], [2, 0])
    for message in found.values():
        assert message.startswith("of 3 ranks only [0, 2] came")
    assert exchange_all(meeting, range(3), 3)[1] == [[b"0 of 0", b"1 of 0", b"2 of 0"]]


# torch_xla beside tensorflow


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)


def test_tensorflow_first_is_an_error_that_says_so():
    loaded = "import sys; sys.modules['tensorflow.python._pywrap_tensorflow_internal'] = None"
    done = run_python(f"{loaded}; import tpufeed; tpufeed.Loader.to_xla(None)")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("tpufeed.errors.UsageError: torch_xla cannot be imported after tensorflow")


@pytest.mark.long
def test_without_that_error_the_process_would_be_aborted():
    done = run_python("import tensorflow, tpufeed; tpufeed.Loader.to_xla(None)")
    assert "tpufeed.errors.UsageError: torch_xla cannot be imported after tensorflow" in done.stderr
    done = run_python("import tensorflow, torch_xla")
    assert done.returncode == -6
    assert "registered more than once" in done.stderr
    done = run_python(
        "import tpufeed; import tpufeed.loaders.xla.loader; import tensorflow as tf; print(int(tf.constant(1) + 1))"
    )
    assert (done.returncode, done.stdout) == (0, "2\n")


# Lightning, whose own handling of dataloaders on XLA devices runs. The script only answers whether there is a TPU, and
# stands in for collectives where there are four CPU devices, on which torch_xla has none.


def host_epochs(url, rank=0, size=1):
    with tpufeed.Loader(url, columns=["sample"], batch_size=5, world=(rank, size), processes=0) as loader:
        return {str(epoch): [samples.tolist() for samples in loader] for epoch in range(2)}


def test_a_mixture_has_no_dataset_that_trainers_could_take(one_device):
    """Lightning asks each loader for it before it trains."""
    assert one_device[0]["mixture's dataset"] is None


def test_a_module_trains_on_one_device(one_device, cache_url):
    one = one_device[0]["lightning"]
    assert one["whole"]["strategy"] == "SingleDeviceXLAStrategy"
    assert one["whole"]["loader"] == "XlaFeed"
    assert one["whole"]["kept by XLAStrategy"]
    assert one["whole"]["epochs"] == host_epochs(cache_url)  # Lightning's own look at it costs no epoch
    assert one["whole"]["validated"] == [*range(26)] * 2


def test_a_checkpoint_in_mid_epoch_goes_on_with_exactly_the_rest(one_device, cache_url):
    one = one_device[0]["lightning"]
    left, resumed = one["left"], one["0"]["epochs"]
    assert len(left["1"]) == 3
    assert {"0": left["0"], "1": left["1"] + resumed["1"]} == host_epochs(cache_url)
    assert list(resumed) == ["1"]


@pytest.mark.long
def test_a_module_trains_on_four_devices_without_a_sampler(run_script, cache_url, tmp_path):
    run_script("xla/xla_lightning.py", cache_url, 4, tmp_path, devices=4)
    validated = []
    for rank in range(4):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert (found["strategy"], found["loader"]) == ("XLAStrategy", "XlaFeed")
        assert found["epochs"] == host_epochs(cache_url, rank, 4)
        validated += found["validated"]
    assert sorted(validated) == sorted([*range(26)] * 2)
