"""Odd values for every parameter: each is refused by an error of tpufeed's, or listed here as one that it takes."""

import inspect
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed import images
from tpufeed.errors import OptionError, TpufeedError
from tpufeed.images.ops import OPS

torch = lazy("torch")

# Values as people give them by mistake; by names, as some are used up.
ODD = {
    "none": lambda: None,
    "text": lambda: "odd",
    "empty": lambda: "",
    "bytes": lambda: b"odd",
    "[]": list,
    "[4,1]": lambda: [4, 1],
    "['odd']": lambda: ["odd"],
    "{}": dict,
    "{'odd':1}": lambda: {"odd": 1},
    "{1:nan}": lambda: {1: float("nan")},
    "set": lambda: {"odd"},
    "iterator": lambda: iter([1]),
    "nan": lambda: float("nan"),
    "-1": lambda: -1,
    "0": lambda: 0,
    "3": lambda: 3,
    "half": lambda: 0.5,
    "True": lambda: True,
    "int64": lambda: np.int64(3),
    "float32": lambda: np.float32(0.5),
    "array": lambda: np.array([1, 2]),
    "scalar": lambda: np.array(1),
    "object": object,
    "function": lambda: len,
    "pair": lambda: (0, 1),
}
WHOLE, SHARE = {"3", "int64"}, {"0", "half", "float32"}
FLAG, TEXT = {"True"}, {"text", "empty"}


def taken(call, name, given):
    """The odd values of a parameter that raise no error of tpufeed's. Any other error fails the test."""
    found = set()
    for said, make in ODD.items():
        try:
            call(**{**given, name: make()})
        except TpufeedError:
            continue
        except Exception as error:
            raise AssertionError(f"{name}={said}: {type(error).__name__}: {error}") from error
        found.add(said)
    return found


def check(call, expected, **given):
    parameters = [name for name in inspect.signature(call).parameters if name not in ("self", "cls")]
    found = {name: taken(call, name, given) for name in parameters}
    assert found == {name: expected.get(name, set()) for name in parameters}


READING = {
    "ops": {"none", "[]"},
    "columns": {"none"},
    "seed": {"-1", "0"} | WHOLE,
    "local_dir": {"none"} | TEXT,
    "local_bytes": {"none", "half", "float32", "0"} | WHOLE,
    "pad": {"none", "{}"},
    "truncate": {"[]", "['odd']"} | FLAG,
    "fill": {"none", "{}"},
    "min_visibility": SHARE,
    "views": {"none"},
    "share": {"none"},
}
LOADER = READING | {
    "batch_size": WHOLE,
    "device_ops": {"none", "[]"},
    "shuffle": FLAG,
    "world": {"none", "pair"},
    **dict.fromkeys(("lanes", "threads", "prefetch"), {"none"} | WHOLE),
    "processes": {"none", "0"} | WHOLE,
    "repeat": FLAG,
    "max_bad_records": {"0"} | WHOLE,
    "max_bad_shards": {"0"} | WHOLE,
    "timeout_seconds": {"half", "float32"} | WHOLE,
}


def test_loaders(cache_url):
    check(tpufeed.Loader, LOADER, url=cache_url, batch_size=4)
    loader = tpufeed.Loader(cache_url, batch_size=4)
    check(loader.set_epoch, {"epoch": {"0"} | WHOLE})
    check(loader.state_dict, {"batches": {"none", "0"} | WHOLE})
    check(loader.load_state_dict, {})


@pytest.mark.uses("torch")
def test_loaders_of_torch(cache_url):
    dataset = tpufeed.TFRecordImages(cache_url)
    check(tpufeed.TFRecordImages, READING | {"transform": {"none", "function"}}, url=cache_url)
    sampler = {"shuffle": FLAG, "seed": READING["seed"], "drop_last": FLAG, "lanes": {"none"} | WHOLE}
    check(tpufeed.LaneSampler, sampler | {"num_replicas": {"none"}, "rank": {"none"}}, dataset=dataset)
    for epochs in (dataset, tpufeed.LaneSampler(dataset)):
        check(epochs.set_epoch, {"epoch": {"0"} | WHOLE})
    loader, devices = tpufeed.Loader(cache_url, batch_size=4), {"none"}
    with suppress(RuntimeError):  # numbers are accelerators, of which a torch for CPUs has none
        devices |= {"3", "0", "int64"} if torch.device(0) else set()
    check(loader.to_device, {"device": devices, "device_prefetch": WHOLE})
    expected = {"device_prefetch": WHOLE, "check_ranks": FLAG, "sharding": {"none"}}
    check(partial(tpufeed.device_loader, [0]), expected | {"device": devices})
    for once in (iter([0]), 3, None):
        with pytest.raises(OptionError, match="again and again"):
            tpufeed.device_loader(once)
    pixels = torch.zeros((1, 2, 2, 3), dtype=torch.uint8)
    check(tpufeed.to_device_float, {"dtype": {"none"}, "layout": {"none"}}, images=pixels)


def test_mixtures_and_views(cache_url):
    dataset = tpufeed.open_dataset(cache_url)
    shared = {"seed": {"none"} | READING["seed"], "reweight": FLAG}
    check(partial(tpufeed.Mixture, {cache_url: 1}), shared)
    check(lambda weights: tpufeed.Mixture(weights).open("train"), {})
    check(tpufeed.Mixture.by_class, shared, dataset=dataset)
    check(partial(tpufeed.Mixture.by_weight, weights="label"), shared, dataset=dataset)
    check(lambda weight: tpufeed.Mixture({cache_url: weight}), {"weight": {"half", "float32"} | WHOLE})
    ids = {"[4,1]", "array", "pair"}
    check(dataset.select, {"classes": ids - {"[4,1]"}, "samples": ids, "drop": ids}, split="train")
    check(lambda keep_ids: dataset.select(classes=[0, 1], keep_ids=keep_ids), {"keep_ids": {"none"} | FLAG})
    for by_split in (dataset.split, dataset.samples, dataset.labels, dataset.class_counts, dataset.class_weights):
        check(by_split, {})
    check(tpufeed.open_dataset, {"version": {"none"}, "grown": FLAG}, url=cache_url)


SIZE, FILL = {"3", "int64", "[4,1]"}, {"0"} | WHOLE
OF_OPS = {
    "size": SIZE,
    "padding": FILL,
    "fill": FILL,
    "value": FILL,
    "p": SHARE,
    "num_ops": FILL,
    "magnitude": FILL,
    "transforms": {"none"},
    "alpha": {"half", "float32"} | WHOLE,
    "sigma": {"half", "float32"} | WHOLE,
    "degrees": SHARE | WHOLE | {"pair"},
    "hue": SHARE,
    **dict.fromkeys(("brightness", "contrast", "saturation"), SHARE | WHOLE | {"pair"}),
    "target": {"function"},
    "column": {"text"},
    "version": {"text", "-1"} | FILL,
    "sample": FLAG,
    "random": FLAG,
}
NEEDED = {"Rotate": {"degrees": 9}, "Custom": {"target": "os:fspath"}, "Choose": {"column": "a"}}


@pytest.mark.parametrize("name", [*OPS, "MixUp", "CutMix"])
def test_ops(name):
    op = getattr(images, name)
    needed = {"size": 8} if "size" in inspect.signature(op).parameters else {}
    check(op, OF_OPS, **NEEDED.get(name, needed))
