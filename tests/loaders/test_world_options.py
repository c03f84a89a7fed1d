"""Who a loader is among ranks, and what it refuses to be told."""

import json
import os
import subprocess
import sys
import typing
from dataclasses import fields

import numpy as np
import pytest

import tpufeed
from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.images.ops import Resize
from tpufeed.loaders.options import LoaderKeywords, LoaderOptions
from tpufeed.loaders.world import find_world, to_world

RANK_OF_TWO = """
import json, sys
import numpy as np
import tpufeed

url, file, rank = sys.argv[1:]
early = tpufeed.numpy_loader(url, columns=["sample"], batch_size=5)  # made before there is a world
import torch.distributed
torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=int(rank), world_size=2)
given = tpufeed.numpy_loader(url, columns=["sample"], batch_size=5, world=(0, 1))
print(json.dumps({
    "early": np.concatenate(list(early)).tolist(),
    "world": [early.world.rank, early.world.size],
    "given": [given.world.rank, given.world.size],
}))
torch.distributed.destroy_process_group()
"""


def test_alone_where_nothing_says_otherwise(cache_url):
    assert find_world() == tpufeed.World(0, 1)
    assert tpufeed.numpy_loader(cache_url, batch_size=5).world == tpufeed.World(0, 1)


def test_a_world_is_given_as_one_or_as_a_pair():
    assert to_world((2, 3)) == to_world(tpufeed.World(2, 3)) == tpufeed.World(rank=2, size=3)


@pytest.mark.parametrize("world", [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_its_world_is_refused(cache_url, world):
    with pytest.raises(OptionError, match=rf"a rank is in \[0, {world[1]}\) for a world of {world[1]}, not {world[0]}"):
        tpufeed.numpy_loader(cache_url, batch_size=5, world=world).world  # noqa: B018  # found out when asked for


def test_torch_distributed_is_asked_when_the_first_batch_is(cache_url, tmp_path):
    command = [sys.executable, "-c", RANK_OF_TWO, cache_url, str(tmp_path / "meet")]
    ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in (0, 1)]
    found = [json.loads(process.communicate(timeout=120)[0].splitlines()[-1]) for process in ranks]
    assert [each["world"] for each in found] == [[0, 2], [1, 2]]
    assert [each["given"] for each in found] == [[0, 1]] * 2
    for rank in (0, 1):
        with tpufeed.numpy_loader(cache_url, columns=["sample"], batch_size=5, world=(rank, 2)) as loader:
            assert np.concatenate(list(loader)).tolist() == found[rank]["early"]


@pytest.mark.parametrize("name", ["batch_size", "prefetch", "threads", "lanes"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "8"])
def test_counts_are_whole_and_at_least_one(name, value):
    with pytest.raises(OptionError, match=f"{name} is a whole number, at least 1, not {value!r}"):
        LoaderOptions(**{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"remainder": "keep"}, "'drop', 'pad' or 'repeat', not 'keep'"),
        ({"columns": "image"}, r"columns is a list of names like \('image', 'label'\), not 'image'"),
        ({"columns": []}, "columns is empty"),
        ({"batch_size": None}, "batch_size is a whole number, at least 1, not None"),
        ({"seed": None}, "seed is a whole number, not None"),
        ({"shuffle": "no"}, "shuffle is True or False, not 'no'"),
        ({"repeat": 1}, "repeat is True or False, not 1"),
        ({"timeout_seconds": 0}, "timeout_seconds is a number above 0, not 0"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        LoaderOptions(**options)


def test_an_empty_split_is_refused(photo_folder, tmp_path):
    url = tpufeed.shard(photo_folder, tmp_path / "d", split={"train": 1 - 1e-9, "val": 1e-9}, workers=1).url
    with pytest.raises(OptionError, match=rf"^{url}: split 'val' is empty"):
        tpufeed.numpy_loader(url, "val")


def test_numpy_s_integers_are_numbers_too(dataset_url, ops):
    def epoch(number):
        options = {"batch_size": number(7), "seed": number(2), "columns": ["image"], "ops": ops}
        with tpufeed.numpy_loader(dataset_url, **options) as loader:
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
    with pytest.raises(OptionError, match=r"ops are tpufeed.images.RandomResizedCrop.*not 'flip'"):
        tpufeed.numpy_loader(cache_url, ops=["flip"])


def test_an_option_that_is_none_is_an_error_that_names_those_there_are(cache_url):
    with pytest.raises(OptionError, match=r"no option 'batchsize'; did you mean batch_size.* processes, threads"):
        tpufeed.numpy_loader(cache_url, batchsize=3)
    with pytest.raises(OptionError, match=r"no option 'batch_size'.*The options are ops, columns"):
        tpufeed.TFRecordImages(cache_url, batch_size=3)


@pytest.mark.parametrize(("options", "message"), [({"ops": Resize(64)}, "ops is a list"), ({"world": 2}, "world is ")])
def test_options_of_another_kind_are_errors(cache_url, options, message):
    with pytest.raises(OptionError, match=message):
        tpufeed.numpy_loader(cache_url, **options)


@pytest.mark.parametrize("epoch", [-1, 1.5, True, "next", None])
def test_an_epoch_is_a_number_from_0_on(cache_url, epoch):
    with pytest.raises(OptionError, match="epochs are numbered 0, 1, 2"):
        tpufeed.numpy_loader(cache_url).set_epoch(epoch)


def test_the_keywords_are_the_options():
    assert set(typing.get_type_hints(LoaderKeywords)) == {field.name for field in fields(LoaderOptions)}


@pytest.mark.parametrize(
    ("face", "module", "extra"),
    [("tf_dataset('x')", "tensorflow", "tf"), ("TFRecordImages", "torch", "torch"), ("xla_loader", "torch_xla", "xla")],
)
def test_a_framework_that_is_not_installed_gives_the_command_that_mends_it(face, module, extra):
    code = f"import sys; sys.modules[{module!r}] = None; import tpufeed; tpufeed.{face}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"tpufeed.errors.{MissingExtraError.__name__}: {module if extra != 'tf' else 'TensorFlow'}")
    assert last.endswith(f"is not installed: pip install 'tpufeed[{extra}]'")
