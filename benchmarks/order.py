"""How well the order of an epoch mixes: lanes beside a full shuffle and a buffer of 10,000 samples.

    python benchmarks/run.py order [--epochs 3] [--save]

1,281 shards of 1,000 records of 1,000 classes, as ImageNet would be. Nothing is read, orders alone are looked at, and
the same seeds give the same figures on every machine. "buffer" is what tf.data programs do: shards in a random order,
16 of them interleaved record by record, then a buffer of 10,000 samples from which a random one is taken.

- Distance: how many samples lie between two records that are neighbours in their shard, as a share of the epoch.
- Shards: the effective number in a batch, 1 / (sum of the squared shares).
- Classes in a batch and their distance in total variation from an equal share of each, for a dataset whose records
  stand in class order (the worst there is) and for one in a random order (what `tpufeed shard` makes).
- Fairness: how often `remainder="drop"` leaves out the records of the first and of the second half of a shard, and
  where in the epoch they come on average; 24 shards of 100 records, half of which 16 lanes cut in the middle.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.entry import make_parser
from benchmarks.harness import describe, figure, flatten, machine, print_table, write_result
from tpufeed.dataset.order import EpochOrder

SHARDS, RECORDS, CLASSES = 1_281, 1_000, 1_000
SAMPLES = SHARDS * RECORDS
BATCH, LONG = 1_024, 16  # LONG batches in a row are looked at, too
INTERLEAVED, BUFFER = 16, 10_000
LANES = (16, 128, 1_024)
FAIR_SHARDS, FAIR_RECORDS, FAIR_LANES, FAIR_BATCH, FAIR_EPOCHS = 24, 100, 16, 512, 2_000


def main(arguments: list[str]) -> None:
    parser = make_parser("order", __doc__)
    parser.add_argument("--epochs", type=int, default=3, metavar="N")
    args = parser.parse_args(arguments)
    orders: dict[str, Callable[[int], np.ndarray]] = {
        **{f"{lanes:,} lanes": lambda epoch, lanes=lanes: lane_order(lanes, epoch) for lanes in LANES},
        "buffer": buffer_order,
        "full shuffle": lambda epoch: np.random.default_rng(epoch).permutation(SAMPLES),
    }
    found = {name: measure([make(epoch) for epoch in range(args.epochs)]) for name, make in orders.items()}
    show(found)
    fair = fairness()
    show_fairness(fair)
    print(describe(machine()))
    if args.save:
        sizes = {"shards": SHARDS, "records_of_shard": RECORDS, "classes": CLASSES, "batch": BATCH}
        rows = [*flatten({"mixing": found}, "measurement", "order"), {"measurement": "fairness", **fair}]
        print(write_result(args.save, {**sizes, "epochs": args.epochs}, rows))


def lane_order(lanes: int, epoch: int) -> np.ndarray:
    """The samples of an epoch in our order."""
    return EpochOrder([RECORDS] * SHARDS, 0, epoch, lanes).places_at(np.arange(SAMPLES)).sample


def buffer_order(epoch: int) -> np.ndarray:
    """The samples of an epoch as `interleave(cycle_length=16).shuffle(10_000)` gives them."""
    rng = np.random.default_rng(epoch)
    line = _interleaved(rng.permutation(SHARDS))
    places = rng.integers(0, BUFFER, SAMPLES - BUFFER).tolist()
    buffer, given = line[:BUFFER].tolist(), []
    for place, sample in zip(places, line[BUFFER:].tolist(), strict=True):
        given.append(buffer[place])
        buffer[place] = sample
    return np.concatenate([given, rng.permutation(buffer)])


def _interleaved(shards: np.ndarray) -> np.ndarray:
    """Shards are all of one length, so that those that are open together end together."""
    groups = [shards[at : at + INTERLEAVED] for at in range(0, SHARDS, INTERLEAVED)]
    return np.concatenate([(group[None, :] * RECORDS + np.arange(RECORDS)[:, None]).ravel() for group in groups])


def measure(epochs: list[np.ndarray]) -> dict[str, Any]:
    """Over all epochs together."""
    assert all(np.array_equal(np.sort(samples), np.arange(SAMPLES)) for samples in epochs)
    distances = np.concatenate([_neighbour_distances(samples) for samples in epochs])
    # Class c of the ordered dataset has the samples c * 1281 to (c + 1) * 1281; the other one deals them at random.
    in_order = np.arange(SAMPLES) * CLASSES // SAMPLES
    at_random = np.random.default_rng(99).permutation(in_order)
    return {
        "distance_mean": float(distances.mean()) / SAMPLES,
        "distance_quantiles": (np.quantile(distances, np.linspace(0, 1, 101)) / SAMPLES).tolist(),
        "neighbours_within_a_batch": float((distances < BATCH).mean()),
        "effective_shards": _mean([1 / (shares**2).sum(1) for shares in _shares(epochs, SAMPLES // RECORDS, RECORDS)]),
        "class_order": _classes([in_order[samples] for samples in epochs]),
        "random_order": _classes([at_random[samples] for samples in epochs]),
    }


def fairness() -> dict[str, Any]:
    """By halves of a shard: the share of epochs that a record is dropped from, and its mean place in those."""
    samples = FAIR_SHARDS * FAIR_RECORDS
    dropped, place = np.zeros(samples), np.zeros(samples)
    for epoch in range(FAIR_EPOCHS):
        order = EpochOrder([FAIR_RECORDS] * FAIR_SHARDS, 0, epoch, FAIR_LANES).places_at(np.arange(samples)).sample
        dropped[order[samples // FAIR_BATCH * FAIR_BATCH :]] += 1
        place[order] += (np.arange(samples) + 0.5) / samples
    halves = (each.reshape(FAIR_SHARDS, 2, -1).mean((0, 2)) / FAIR_EPOCHS for each in (dropped, place))
    return {
        **{"shards": FAIR_SHARDS, "records_of_shard": FAIR_RECORDS, "lanes": FAIR_LANES, "batch": FAIR_BATCH},
        "epochs": FAIR_EPOCHS,
        "expected": {"dropped": samples % FAIR_BATCH / samples, "place": 0.5},
        **{name: dict(zip(("first_half", "second_half"), each.tolist(), strict=True))
           for name, each in zip(("dropped", "place"), halves, strict=True)},
    }  # fmt: skip


def _neighbour_distances(samples: np.ndarray) -> np.ndarray:
    position = np.empty(SAMPLES, np.int64)
    position[samples] = np.arange(SAMPLES)
    return np.abs(np.diff(position.reshape(SHARDS, RECORDS), axis=1)).ravel()


def _classes(epochs: list[np.ndarray]) -> dict[str, float]:
    batch, long = (list(_shares(epochs, CLASSES, 1, size)) for size in (BATCH, BATCH * LONG))
    return {
        "classes_of_batch": _mean([(shares > 0).sum(1) for shares in batch]),
        "total_variation_of_batch": _mean([np.abs(shares - 1 / CLASSES).sum(1) / 2 for shares in batch]),
        f"total_variation_of_{LONG}_batches": _mean([np.abs(shares - 1 / CLASSES).sum(1) / 2 for shares in long]),
    }


def _shares(epochs: list[np.ndarray], kinds: int, divisor: int, size: int = BATCH) -> list[np.ndarray]:
    """For each epoch the share of each kind in each full run of `size` samples."""
    found = []
    for values in epochs:
        runs = (values // divisor)[: SAMPLES // size * size].reshape(-1, size)
        flat = (np.arange(len(runs))[:, None] * kinds + runs).ravel()
        found.append(np.bincount(flat, minlength=len(runs) * kinds).reshape(-1, kinds) / size)
    return found


def _mean(values: list[np.ndarray]) -> float:
    return float(np.mean(np.concatenate(values)))


def show(found: dict[str, Any]) -> None:
    columns = ["order", "distance, %: mean", "5th", "median", "95th", "shards in a batch"]
    rows = [
        [name, figure(100 * each["distance_mean"], 2),
         *(figure(100 * each["distance_quantiles"][at], 2) for at in (5, 50, 95)), figure(each["effective_shards"])]
        for name, each in found.items()
    ]  # fmt: skip
    print_table("Neighbours of a shard, as a share of the epoch; shards in a batch of 1,024", columns, rows)
    for dataset in ("class_order", "random_order"):
        keys = list(next(iter(found.values()))[dataset])
        rows = [[name, *(figure(each[dataset][key], 3) for key in keys)] for name, each in found.items()]
        print_table(dataset.replace("_", " "), ["order", *keys], rows)


def show_fairness(fair: dict[str, Any]) -> None:
    rows = [[name, *(figure(each, 3) for each in (fair["expected"][name], *fair[name].values()))]
            for name in ("dropped", "place")]  # fmt: skip
    print_table("Halves of a shard", ["share of epochs, of an epoch", "expected", "first", "second"], rows)
