"""What a loader refuses to be told, and what it says of itself."""

import copy
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import tpufeed
from tpufeed.errors import MissingExtraError, OptionError, install_command
from tpufeed.images import Resize
from tpufeed.stream.options import LoaderOptions

# torch_xla's ranks that are processes: no machine without a TPU has them, so the module is made up


@pytest.mark.parametrize("name", ["batch_size", "prefetch", "threads", "lanes"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "8"])
def test_counts_are_whole_and_at_least_one(name, value):
    with pytest.raises(OptionError, match=f"{name}.*{value!r}"):
        LoaderOptions(**{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"remainder": "keep"}, "'keep'"),
        ({"columns": "image"}, "columns.*'image'"),
        ({"columns": []}, "columns"),
        ({"batch_size": None}, "batch_size"),
        ({"seed": None}, "seed"),
        ({"shuffle": "no"}, "shuffle"),
        ({"repeat": 1}, "repeat"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": True}, "timeout_seconds.*True"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        LoaderOptions(**options)


def test_an_empty_split_is_refused(photo_folder, tmp_path):
    url = tpufeed.shard(photo_folder, tmp_path / "d", splits={"train": 1 - 1e-9, "val": 1e-9}, workers=1).url
    with pytest.raises(OptionError, match=f"{url}.*'val'"):
        tpufeed.Loader(url, "val")


def test_numpy_s_integers_are_numbers_too(dataset_url, ops):
    def epoch(number):
        options = {"batch_size": number(7), "seed": number(2), "columns": ["image"], "ops": ops}
        with tpufeed.Loader(dataset_url, **options) as loader:
            loader.set_epoch(number(3))
            assert len(loader) == 10
            return np.stack(list(loader)), json.dumps(loader.state_dict())

    images, state = epoch(np.int64)
    expected, expected_state = epoch(int)
    np.testing.assert_array_equal(images, expected)
    assert state == expected_state
    image, _ = tpufeed.TFRecordImages(dataset_url, ops=ops, seed=np.int64(2))[0]
    assert image.shape == (64, 64, 3)


def test_ops_are_checked_when_the_loader_is_made(cache_url):
    with pytest.raises(OptionError, match="'flip'"):
        tpufeed.Loader(cache_url, ops=["flip"])


def test_an_option_that_is_none_is_an_error_that_names_those_there_are(cache_url):
    with pytest.raises(OptionError, match=r"'batchsize'.*batch_size"):
        tpufeed.Loader(cache_url, batchsize=3)
    with pytest.raises(OptionError, match=r"'batch_size'.*DataLoader"):
        tpufeed.TFRecordImages(cache_url, batch_size=3)


@pytest.mark.parametrize(("theirs", "ours"), [("num_workers", "processes"), ("drop_last", "remainder")])
def test_an_option_by_torch_s_name_is_an_error_that_says_ours(theirs, ours, cache_url):
    with pytest.raises(OptionError, match=f"'{theirs}'.*{ours}"):
        tpufeed.Loader(cache_url, **{theirs: 1})


def test_a_list_of_urls_is_no_dataset(cache_url):
    with pytest.raises(OptionError, match=r"\['"):
        tpufeed.Loader([cache_url, cache_url])


def test_a_loader_says_what_and_where_it_reads(cache_url):
    with tpufeed.Loader(cache_url, "train", batch_size=9, seed=1) as loader:
        assert repr(loader) == f"Loader({cache_url!r}, 'train', batch_size=9, epoch=0, samples=0)"
        next(iter(loader))
        assert repr(loader).endswith("batch_size=9, epoch=0, samples=9)")
        assert repr(copy.copy(loader)) == repr(loader)


def test_feeds_say_the_place_of_their_loader(cache_url):
    host = f"Loader({cache_url!r}, 'train', batch_size=9, epoch=0, samples="
    with tpufeed.Loader(cache_url, batch_size=9, columns=["label"]).to_device("cpu") as feed:
        assert repr(feed) == f"TorchDeviceFeed({host}0))"
        next(iter(feed))
        assert repr(feed) == f"TorchDeviceFeed({host}9))"


def test_a_map_style_dataset_says_what_it_reads(cache_url):
    dataset = tpufeed.TFRecordImages(cache_url, "val")
    dataset.set_epoch(3)
    assert repr(dataset) == f"TFRecordImages({cache_url!r}, 'val', samples={len(dataset)}, epoch=3)"


@pytest.mark.parametrize(("options", "message"), [({"ops": Resize(64)}, "ops"), ({"world": 2}, "world")])
def test_options_of_another_kind_are_errors(cache_url, options, message):
    with pytest.raises(OptionError, match=message):
        tpufeed.Loader(cache_url, **options)


@pytest.mark.parametrize("epoch", [-1, 1.5, True, "next", None])
def test_an_epoch_is_a_number_from_0_on(cache_url, epoch):
    with pytest.raises(OptionError, match="epoch"):
        tpufeed.Loader(cache_url).set_epoch(epoch)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("face", "module", "extra"),
    [
        ("Loader(sys.argv[1]).to_tf()", "tensorflow", "tf"),
        ("TFRecordImages", "torch", "torch"),
        ("Loader.to_xla(None)", "torch_xla", "xla"),
    ],
)
def test_a_framework_that_is_not_installed_gives_the_command_that_mends_it(face, module, extra, cache_url):
    code = f"import sys; sys.modules[{module!r}] = None; import tpufeed; tpufeed.{face}"
    done = subprocess.run(
        [sys.executable, "-c", code, cache_url], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"tpufeed.errors.{MissingExtraError.__name__}: {module if extra != 'tf' else 'TensorFlow'}")
    assert last.endswith(f"is not installed: {install_command(extra)}")
