"""Draws what `bench_scale.py` saved; `scale_page.py --write` calls it."""

from pathlib import Path
from typing import Any


def plot(found: dict[str, Any], path: Path) -> None:
    """Four panels: time and memory by images, start by shards, rate by workers."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "tpufeed", "font.size": 9, "font.family": "sans-serif"}
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 2, figsize=(9.6, 6.4), layout="constrained")
    (seconds, memory), (start, workers) = panels
    _plot_sizes(found, seconds, memory)
    _plot_start(found["scale"], start)
    _plot_workers(found["scale-workers"], workers)
    for panel in panels.flat:
        panel.grid(alpha=0.3)
        panel.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def _plot_sizes(found: dict[str, Any], seconds: Any, memory: Any) -> None:
    for part, label, colour in (("build", "building, all processes", "#084594"), ("plan", "planning", "#e6550d")):
        sizes = {int(size): each for size, each in found[f"scale-{part}"]["sizes"].items()}
        seconds.plot(list(sizes), [each["cpu_seconds"] for each in sizes.values()], "o-", color=colour, label=label)
        key = "launcher_peak_mb" if part == "build" else "peak_mb"
        who = label.replace("all processes", "launcher")
        memory.plot(list(sizes), [each[key] for each in sizes.values()], "o-", color=colour, label=who)
    sizes = {int(size): each for size, each in found["scale-build"]["sizes"].items()}
    memory.plot(
        list(sizes), [each["worker_peak_mb"] for each in sizes.values()], "o-", color="#9ecae1", label="a worker"
    )
    seconds.set(xscale="log", yscale="log", xlabel="images", ylabel="seconds of the CPU", title="Time")
    memory.set(xscale="log", ylim=(0, None), xlabel="images", ylabel="MB at the most", title="Memory of a process")


def _plot_start(scale: dict[str, Any], start: Any) -> None:
    datasets = {int(size): each for size, each in scale.items() if size.isdigit()}
    shards = [size // scale["records_of_shard"] for size in datasets]
    for key, label, colour in (
        ("first_batch_seconds", "first batch of Loader, processes and all", "#084594"),
        ("open_dataset_seconds", "open_dataset", "#e6550d"),
    ):
        start.plot(shards, [each[key] for each in datasets.values()], "o-", color=colour, label=label)
    start.set(xscale="log", ylim=(0, None), xlabel="shards of a local dataset", ylabel="seconds", title="Start")


def _plot_workers(scaling: dict[str, Any], workers: Any) -> None:
    for name, label, colour in (
        ("Loader", "Loader: crop, flip", "#084594"),
        ("shard", "shard, full check", "#e6550d"),
    ):
        rates = {int(count): each for count, each in scaling[name].items()}
        medians = [each["median"] for each in rates.values()]
        spread = [[each["median"] - each["low"], each["high"] - each["median"]] for each in rates.values()]
        workers.errorbar(list(rates), medians, list(zip(*spread, strict=True)), fmt="o-", color=colour, label=label)
    cores = scaling["machine"]["cores"]
    workers.set(
        ylim=(0, None), xticks=list(rates), xlabel=f"worker processes, on {cores} cores", ylabel="images a second"
    )
    workers.set_title("Throughput")
