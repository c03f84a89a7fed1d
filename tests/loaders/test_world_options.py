"""Who a loader is among ranks, and what it refuses to be told."""

import copy
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import tpufeed
from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.images import Resize
from tpufeed.loaders.options import LoaderOptions
from tpufeed.loaders.world import find_tf_world, find_world, to_world

RANK_OF_TWO = """
import json, sys
import numpy as np
import tpufeed

url, file, rank = sys.argv[1:]
early = tpufeed.Loader(url, columns=["sample"], batch_size=5)  # made before there is a world
import torch.distributed
torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=int(rank), world_size=2)
given = tpufeed.Loader(url, columns=["sample"], batch_size=5, world=(0, 1))
print(json.dumps({
    "early": np.concatenate(list(early)).tolist(),
    "world": [early.world.rank, early.world.size],
    "given": [given.world.rank, given.world.size],
}))
torch.distributed.destroy_process_group()
"""


def test_alone_where_nothing_says_otherwise(cache_url):
    assert find_world() == tpufeed.World(0, 1)
    assert tpufeed.Loader(cache_url, batch_size=5).world == tpufeed.World(0, 1)


def test_a_world_is_given_as_one_or_as_a_pair():
    assert to_world((2, 3)) == to_world(tpufeed.World(2, 3)) == tpufeed.World(rank=2, size=3)


@pytest.mark.parametrize("world", [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_its_world_is_refused(cache_url, world):
    with pytest.raises(OptionError, match=rf"a rank is in \[0, {world[1]}\) for a world of {world[1]}, not {world[0]}"):
        tpufeed.Loader(cache_url, batch_size=5, world=world)


@pytest.mark.parametrize("world", [(0, "x"), (1,), (0, 1, 2), (None, 2)])
def test_a_world_that_is_no_pair_of_numbers_is_refused(cache_url, world):
    with pytest.raises(OptionError, match=r"world is \(rank, size\), like \(0, 8\), not \("):
        tpufeed.Loader(cache_url, batch_size=5, world=world)


def test_torch_distributed_is_asked_when_the_first_batch_is(cache_url, tmp_path):
    command = [sys.executable, "-c", RANK_OF_TWO, cache_url, str(tmp_path / "meet")]
    ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in (0, 1)]
    found = [json.loads(process.communicate(timeout=120)[0].splitlines()[-1]) for process in ranks]
    assert [each["world"] for each in found] == [[0, 2], [1, 2]]
    assert [each["given"] for each in found] == [[0, 1]] * 2
    for rank in (0, 1):
        with tpufeed.Loader(cache_url, columns=["sample"], batch_size=5, world=(rank, 2)) as loader:
            assert np.concatenate(list(loader)).tolist() == found[rank]["early"]


# torch_xla's ranks that are processes: no machine without a TPU has them, so the module is made up


def made_up_xla(started=True, replicas=0, devices=1, spmd=False, rank=0, size=1):
    """As far as it may be asked: nobody must start it, or ask for a world that it would remember."""

    def once(allowed, value):
        return lambda: value if allowed else pytest.fail("this must not be asked")

    library = SimpleNamespace(
        _xla_runtime_is_initialized=lambda: started,
        _xla_get_replication_devices_count=once(started, replicas),
        _xla_num_devices=once(started, devices),
    )
    launched = started and replicas > 0
    runtime = SimpleNamespace(
        is_spmd=lambda: spmd,
        global_ordinal=once(launched and not spmd, rank),
        world_size=once(launched and not spmd, size),
        process_index=once(started and spmd, rank),
        process_count=once(started and spmd, size),
    )
    return SimpleNamespace(_XLAC=library, runtime=runtime)


@pytest.mark.parametrize(
    ("xla", "world"),
    [
        ({"replicas": 1, "rank": 5, "size": 8}, (5, 8)),
        ({"spmd": True, "rank": 1, "size": 4, "devices": 4}, (1, 4)),
        ({"spmd": True, "devices": 4}, (0, 1)),
        ({"replicas": 1}, (0, 1)),
        ({"devices": 4}, (0, 1)),
        ({"started": False}, (0, 1)),
    ],
    ids=str,
)
def test_ranks_of_torch_xla_that_are_processes(cache_url, monkeypatch, xla, world):
    monkeypatch.setitem(sys.modules, "torch_xla", made_up_xla(**xla))
    assert tpufeed.Loader(cache_url).world == tpufeed.World(*world)
    monkeypatch.setenv("TF_CONFIG", "")
    assert find_tf_world() == tpufeed.World(*world)


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        (("PJRT_LOCAL_PROCESS_COUNT", "4"), "one of 4 processes by PJRT_LOCAL_PROCESS_COUNT, and torch_xla's runtime"),
        (("XLA_USE_SPMD", "1"), "a program under SPMD, maybe one of several, and torch_xla's runtime is not started"),
    ],
)
def test_a_launched_process_that_torch_xla_does_not_know_yet(cache_url, monkeypatch, variable, message):
    """As the spawned worker of a DataLoader, which has its rank's environment."""
    monkeypatch.setenv(*variable)
    assert find_world() == tpufeed.World()  # torch_xla is not loaded
    monkeypatch.setitem(sys.modules, "torch_xla", made_up_xla(started=False))
    with pytest.raises(OptionError, match=message):
        next(iter(tpufeed.Loader(cache_url, columns=["sample"])))
    assert tpufeed.Loader(cache_url, world=(1, 2)).world == tpufeed.World(1, 2)


def test_tasks_of_slurm_that_no_framework_knows_of_are_warned_of(monkeypatch, caplog):
    monkeypatch.setenv("SLURM_PROCID", "2")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert find_world() == tpufeed.World()
    assert not caplog.records
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert find_world() == tpufeed.World()
    assert "task 2 of 4 of this Slurm step reads everything" in caplog.text
    assert "world=(rank, size)" in caplog.text
    caplog.clear()
    jax = SimpleNamespace(global_state=SimpleNamespace(client=object(), process_id=2, num_processes=4))
    monkeypatch.setitem(sys.modules, "jax._src.distributed", jax)  # as jax.distributed.initialize() leaves it
    assert find_world() == tpufeed.World(2, 4)
    assert not caplog.records


def test_worlds_of_two_frameworks(monkeypatch):
    """Of one size they are the same ranks, though each may number them otherwise; a world of one says nothing."""
    jax = SimpleNamespace(global_state=SimpleNamespace(client=object(), process_id=3, num_processes=8))
    monkeypatch.setitem(sys.modules, "jax._src.distributed", jax)
    assert find_world() == tpufeed.World(3, 8)
    monkeypatch.setitem(sys.modules, "torch_xla", made_up_xla(replicas=1, rank=5, size=8))
    assert find_world() == tpufeed.World(5, 8)
    monkeypatch.setitem(sys.modules, "torch_xla", made_up_xla(replicas=1))
    assert find_world() == tpufeed.World(3, 8)
    monkeypatch.setitem(sys.modules, "torch_xla", made_up_xla(replicas=1, rank=1, size=4))
    with pytest.raises(OptionError, match=r"torch_xla has 4 and JAX has 8 ranks: .* or give world=\(rank, size\)"):
        find_world()


@pytest.mark.parametrize("name", ["batch_size", "prefetch", "threads", "lanes"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "8"])
def test_counts_are_whole_and_at_least_one(name, value):
    with pytest.raises(OptionError, match=f"{name} is a whole number, at least 1, not {value!r}"):
        LoaderOptions(**{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"remainder": "keep"}, "'drop', 'pad' or 'repeat', not 'keep'"),
        ({"columns": "image"}, r"columns is 'default', or a list of names, .*, not 'image'"),
        ({"columns": []}, "columns is empty"),
        ({"batch_size": None}, "batch_size is a whole number, at least 1, not None"),
        ({"seed": None}, "seed is a whole number, not None"),
        ({"shuffle": "no"}, "shuffle is True or False, not 'no'"),
        ({"repeat": 1}, "repeat is True or False, not 1"),
        ({"timeout_seconds": 0}, "timeout_seconds is a number above 0, not 0"),
        ({"timeout_seconds": True}, "timeout_seconds is a number above 0, not True"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        LoaderOptions(**options)


def test_an_empty_split_is_refused(photo_folder, tmp_path):
    url = tpufeed.shard(photo_folder, tmp_path / "d", shares={"train": 1 - 1e-9, "val": 1e-9}, workers=1).url
    with pytest.raises(OptionError, match=rf"^{url}: split 'val' is empty"):
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
    with pytest.raises(OptionError, match=r"ops are tpufeed.images.RandomResizedCrop.*not 'flip'"):
        tpufeed.Loader(cache_url, ops=["flip"])


def test_an_option_that_is_none_is_an_error_that_names_those_there_are(cache_url):
    with pytest.raises(OptionError, match="Loader has no option 'batchsize'; use batch_size"):
        tpufeed.Loader(cache_url, batchsize=3)
    with pytest.raises(OptionError, match="no option 'batch_size'; give it to the DataLoader"):
        tpufeed.TFRecordImages(cache_url, batch_size=3)


@pytest.mark.parametrize(("theirs", "ours"), [("num_workers", "processes"), ("drop_last", "remainder")])
def test_an_option_by_torch_s_name_is_an_error_that_says_ours(theirs, ours, cache_url):
    with pytest.raises(OptionError, match=f"no option '{theirs}'; use {ours}"):
        tpufeed.Loader(cache_url, **{theirs: 1})


def test_a_list_of_urls_is_no_dataset(cache_url):
    with pytest.raises(OptionError, match=r"one URL or path is wanted, like gs://bucket/flowers, not a list: \['"):
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


@pytest.mark.parametrize(("options", "message"), [({"ops": Resize(64)}, "ops is a list"), ({"world": 2}, "world is ")])
def test_options_of_another_kind_are_errors(cache_url, options, message):
    with pytest.raises(OptionError, match=message):
        tpufeed.Loader(cache_url, **options)


@pytest.mark.parametrize("epoch", [-1, 1.5, True, "next", None])
def test_an_epoch_is_a_number_from_0_on(cache_url, epoch):
    with pytest.raises(OptionError, match="epochs are numbered 0, 1, 2"):
        tpufeed.Loader(cache_url).set_epoch(epoch)


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
    assert last.endswith(f"is not installed: pip install 'tpufeed[{extra}]'")
