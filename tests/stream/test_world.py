"""Who a loader is among ranks."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed.errors import OptionError
from tpufeed.stream.world import find_tf_world, find_world, to_world

jax = lazy("jax")

TWO_RANKS = """
import json, os, sys
import numpy as np
import tpufeed

url, file = sys.argv[1:]
early = tpufeed.Loader(url, columns=["sample"], batch_size=5)  # made before there is a world
import torch.distributed
child = os.fork()  # to import torch takes longer than all the rest
rank = 0 if child else 1
torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
given = tpufeed.Loader(url, columns=["sample"], batch_size=5, world=(0, 1))
found = {
    "early": np.concatenate(list(early)).tolist(),
    "world": [early.world.rank, early.world.size],
    "given": [given.world.rank, given.world.size],
}
with open(f"{file}-{rank}", "w") as out:
    json.dump(found, out)
torch.distributed.destroy_process_group()
assert not child or not os.waitpid(child, 0)[1]
"""


def test_alone_where_nothing_says_otherwise(cache_url):
    assert find_world() == tpufeed.World(0, 1)
    assert tpufeed.Loader(cache_url, batch_size=5).world == tpufeed.World(0, 1)


def test_a_world_is_given_as_one_or_as_a_pair():
    assert to_world((2, 3)) == to_world(tpufeed.World(2, 3)) == tpufeed.World(rank=2, size=3)


@pytest.mark.parametrize("world", [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_its_world_is_refused(cache_url, world):
    with pytest.raises(OptionError, match=rf"{world[1]}.*not {world[0]}"):
        tpufeed.Loader(cache_url, batch_size=5, world=world)


@pytest.mark.parametrize("world", [(0, "x"), (1,), (0, 1, 2), (None, 2)])
def test_a_world_that_is_no_pair_of_numbers_is_refused(cache_url, world):
    with pytest.raises(OptionError, match=r"\(rank, size\)"):
        tpufeed.Loader(cache_url, batch_size=5, world=world)


@pytest.mark.all
@pytest.mark.uses("torch")
def test_torch_distributed_is_asked_when_the_first_batch_is(cache_url, tmp_path):
    command = [sys.executable, "-c", TWO_RANKS, cache_url, str(tmp_path / "meet")]
    subprocess.run(command, timeout=200, check=True)
    found = [json.loads((tmp_path / f"meet-{rank}").read_text()) for rank in (0, 1)]
    assert [each["world"] for each in found] == [[0, 2], [1, 2]]
    assert [each["given"] for each in found] == [[0, 1]] * 2
    for rank in (0, 1):
        with tpufeed.Loader(cache_url, columns=["sample"], batch_size=5, world=(rank, 2)) as loader:
            assert np.concatenate(list(loader)).tolist() == found[rank]["early"]


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
        (("PJRT_LOCAL_PROCESS_COUNT", "4"), "PJRT_LOCAL_PROCESS_COUNT"),
        (("XLA_USE_SPMD", "1"), "SPMD"),
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


@pytest.mark.uses("jax")
def test_tasks_of_slurm_that_no_framework_knows_of_are_warned_of(monkeypatch, caplog):
    monkeypatch.setenv("SLURM_PROCID", "2")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert find_world() == tpufeed.World()
    assert not caplog.records
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert find_world() == tpufeed.World()
    assert "task 2 of 4" in caplog.text
    caplog.clear()
    jax = SimpleNamespace(global_state=SimpleNamespace(client=object(), process_id=2, num_processes=4))
    monkeypatch.setitem(sys.modules, "jax._src.distributed", jax)  # as jax.distributed.initialize() leaves it
    assert find_world() == tpufeed.World(2, 4)
    assert not caplog.records


@pytest.mark.uses("jax")
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
    with pytest.raises(OptionError, match="torch_xla has 4 and JAX has 8"):
        find_world()
