"""Draw the pictures of README.md and docs/ from the results.

    python benchmarks/run.py plot [NAME ...] [--results FOLDER] [--out FOLDER]

Text stays text, so that SVGs can be searched. On dark pages they are dark. A phone of 400 pixels shows all text with at
least 9.
"""

import io
import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.entry import FOLDER, RESULTS, ROOT, make_parser
from benchmarks.harness import nest

OURS, THEIRS, WAITING = "#1a73b8", "#9aa7b1", "#e8a33d"
DARK, LIGHT, ORANGE, GREY = "#084594", "#9ecae1", "#e6550d", "#636363"
INK = "#333333"
WIDTH, TEXT = 4.9, 9  # inches and points
# Browsers that show a picture on a dark page follow this; all other viewers show it as matplotlib draws it.
STYLE = f"""<style>@media (prefers-color-scheme: dark) {{
text:not([style*="fill"]), text[style*="fill: {INK}"] {{ fill: #cfd8dc !important }}
path[style*="fill: #ffffff"] {{ fill: #1e2429 !important; stroke: none !important }}
[style*="stroke: #000000"], path[style*="stroke: {INK}"] {{ stroke: #90a4ae !important }}
[style*="fill: {DARK}"] {{ fill: #deebf7 !important }} [style*="stroke: {DARK}"] {{ stroke: #deebf7 !important }}
[style*="fill: {GREY}"] {{ fill: #bdbdbd !important }} [style*="stroke: {GREY}"] {{ stroke: #bdbdbd !important }}
}}</style>
"""

Result = Mapping[str, Any]


class Picture(NamedTuple):
    """What a picture is drawn from, how, its height in inches, and where it is kept."""

    results: tuple[str, ...]
    paint: Callable[..., None]
    height: Callable[..., float]
    folder: Path = FOLDER / "plots"


def main(arguments: list[str]) -> None:
    parser = make_parser("plot", __doc__, save=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help=" ".join(PICTURES))
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: where each picture is kept")
    args = parser.parse_args(arguments)
    if unknown := set(args.names) - set(PICTURES):
        parser.error(f"no such picture: {' '.join(sorted(unknown))}")
    for name in args.names or PICTURES:
        target = (args.out or PICTURES[name].folder) / f"{name}.svg"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(draw(name, args.results))
        print(target)


def draw(name: str, folder: Path = RESULTS) -> str:
    """Return the SVG of a picture, of the results in a folder."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    picture = PICTURES[name]
    results = [json.loads((folder / f"{result}.json").read_text()) for result in picture.results]
    titles = {"axes.titlesize": TEXT, "axes.titlelocation": "left"}
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": TEXT, **titles}):
        figure = Figure(figsize=(WIDTH, picture.height(*results)), layout="constrained")
        FigureCanvasSVG(figure)
        picture.paint(figure, *results)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue().replace(" <defs>\n", f" {STYLE} <defs>\n", 1)


def _number_plainly(*axes: Any) -> None:
    """Number logarithmic axes like 10k and 0.001: exponents would be smaller than other text."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, NullFormatter

    thousands = EngFormatter(sep="")
    for axis in axes:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if value < 1 else thousands(value)))
        axis.set_minor_formatter(NullFormatter())


def say_machine(machine: Mapping[str, Any]) -> str:
    """Return where figures are from, in a line."""
    parts = (machine.get("cpu"), f"{machine.get('cores')} cores", machine.get("date"))
    return ", ".join(str(part) for part in parts if part) if machine.get("cpu") else "machine unknown"


def paint_idle(figure: Any, demo: Result) -> None:
    """How much of its time an accelerator waits for images: the emulated rows of the demo."""
    rows = _emulated(demo)
    axes = figure.add_subplot(xlim=(0, 100), ylim=(len(rows) - 0.4, -0.8), yticks=[])
    for place, row in enumerate(rows):
        idle = row["idle_percent"]
        axes.barh(place, 100 - idle, 0.4, color=OURS if "tpufeed" in row["label"] else THEIRS)
        axes.barh(place, idle, 0.4, left=100 - idle, color=WAITING, alpha=0.35)
        side, colour, x = ("right", INK, 99) if idle > 50 else ("left", "white", 1)
        axes.annotate(f"{idle:.1f} % idle", (x, place), va="center", ha=side, color=colour)
        axes.annotate(row["label"], (0, place - 0.43), va="center")
        axes.annotate(f"{row['images_per_second']:,.0f} img/s", (100, place - 0.43), va="center", ha="right")
    meaning = "% of the time: full, it computes; pale, it waits for images"
    axes.set_xlabel(f"{meaning}\n{say_machine(demo['machine'])}")
    axes.set_title(f"{rows[0]['device']}, batches of {rows[0]['batch_size']}, by what feeds it")
    axes.spines[["top", "right", "left"]].set_visible(False)


def _emulated(demo: Result) -> list[Mapping[str, Any]]:
    return [row for row in demo["rows"] if str(row["device"]).startswith("EMULATED")]


def paint_doctor(figure: Any, doctor: Result) -> None:
    """Idle as the doctor predicts it and as an emulated accelerator measures it, with the stage that binds."""
    set_ups = doctor["rows"][::-1]
    axes = figure.add_subplot()
    for shift, kind, label, colour in (
        (0.2, "predicted", "predicted by the doctor", OURS),
        (-0.2, "measured", "EMULATED", THEIRS),
    ):
        values = [one[f"{kind}_idle_percent"] for one in set_ups]
        places = [place + shift for place in range(len(set_ups))]
        bars = axes.barh(places, values, 0.38, color=colour, label=label)
        axes.bar_label(bars, [f"{value:.1f} %" for value in values], padding=3)
    axes.set_yticks(range(len(set_ups)), [f"{one['set_up']}\nbinds: {one['binding']}" for one in set_ups])
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"idle % of an accelerator that outruns its loader\n{say_machine(doctor['machine'])}")
    figure.legend(frameon=False, loc="outside upper left", ncols=2)
    axes.spines[["top", "right"]].set_visible(False)


def paint_stages(figure: Any, stages: Result) -> None:
    """What each stage gives by itself beside what a TPU takes: a panel for each dataset, stages in order."""
    datasets = stages["rows"]
    most = max(stage["median"] for one in datasets for stage in one["stages"].values())
    heights = [len(one["stages"]) for one in datasets]
    panels = figure.subplots(len(datasets), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for panel, one in zip(panels, datasets, strict=True):
        _paint_panel(panel, one)
    panels[-1].set_xlim(100, 4 * most)
    _number_plainly(panels[-1].xaxis)
    panels[-1].set_xlabel(
        "images a second of a stage by itself, medians, logarithmic;\n"
        f"the band is what a {stages['about']['tpu']} takes\n"
        f"{say_machine(stages['machine'])}",
    )


def _paint_panel(axes: Any, one: Mapping[str, Any]) -> None:
    stages = list(one["stages"].items())[::-1]
    axes.axvspan(*one["needed"], color=WAITING, alpha=0.35, linewidth=0)
    for place, (stage, rates) in enumerate(stages):
        axes.barh(place, rates["median"], color=OURS if stage == one["binding"] else THEIRS, height=0.7)
        values = rates["images_per_second"]
        axes.plot([min(values), max(values)], [place, place], color=INK, linewidth=1)
        axes.annotate(f" {rates['median']:,.0f}", (max(values), place), va="center")
    axes.set_xscale("log")
    axes.set_yticks(range(len(stages)), [stage for stage, _ in stages])
    low, high = sorted(one["idle_percent"])
    idle = f"{high:.0f} %" if round(low) == round(high) else f"{low:.0f} to {high:.0f} %"
    binds = "only the accelerator" if one["binding"] == "accelerator" else one["binding"]
    axes.set_title(f"{one['dataset']}: {binds} binds, {idle} idle predicted")
    axes.spines[["top", "right"]].set_visible(False)


def paint_window(figure: Any, window: Result) -> None:
    """What decoding only a window gains, by its share of the image and by the scale of a crop."""
    windows = nest(window["rows"], "photos", "way", value="microseconds", measurement="windows")
    crops = nest(window["rows"], "scale", "way", value="images_per_second", measurement="crops")
    above, below = figure.subplots(2, 1)
    for (kind, found), style in zip(windows.items(), ("-", "--"), strict=True):
        medians = {way: statistics.median(values) for way, values in found.items()}
        shares = [way for way in medians if way[0].isdigit()]
        times = [medians[share] / medians["whole"] for share in shares]
        above.plot([100 * float(share) for share in shares], times, style, color=OURS, label=kind)
    above.axhline(1, color=THEIRS, linewidth=1)
    above.set_ylim(0)
    above.set_xlabel("window, % of the area")
    above.set_title("time to cut and decode, to decoding the whole")
    above.legend(frameon=False)
    for place, found in enumerate(crops.values()):
        for offset, (name, color) in enumerate((("byte for byte", THEIRS), ("with markers", OURS))):
            rate = statistics.median(found[name])
            below.bar(place + 0.4 * offset, rate, 0.36, color=color, label=None if place else name)
    below.set_xticks([place + 0.2 for place in range(len(crops))], list(crops))
    below.set_xlabel("scale of RandomResizedCrop")
    below.set_title("Loader, 500x375, images a second")
    below.legend(frameon=False)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(say_machine(window["machine"]), fontsize=TEXT)


def paint_order(figure: Any, order: Result) -> None:
    """How far apart neighbours end up, and how many classes are in a batch."""
    found = nest(order["rows"], "order", measurement="mixing")
    colours = dict(zip(found, (LIGHT, "#4292c6", DARK, ORANGE, GREY), strict=True))
    above, below = figure.subplots(2, 1)
    for name, each in found.items():
        above.plot(each["distance_quantiles"], np.linspace(0, 1, 101), label=name, color=colours[name])
    above.set(xscale="log", xlim=(1e-5, 1), ylim=(0, 1), xlabel="distance as a share of the epoch")
    _number_plainly(above.xaxis)
    above.set(ylabel="share of the pairs", title="Records that are neighbours in a shard")
    above.legend(frameon=False, loc="upper left")
    above.grid(alpha=0.3)
    names = list(found)[::-1]
    for dataset, label, offset, alpha in (("class_order", "class", 0.2, 1.0), ("random_order", "random", -0.2, 0.45)):
        values = [found[name][dataset]["classes_of_batch"] for name in names]
        places, colour = np.arange(len(names)) + offset, [colours[name] for name in names]
        bars = below.barh(places, values, 0.38, alpha=alpha, color=colour)
        below.bar_label(bars, [f"{value:,.0f}  in {label} order" for value in values], padding=3)
    below.set(yticks=range(len(names)), yticklabels=names, xlim=(0, 1050), xlabel="classes, of 1,000")
    below.set_title("Classes in a batch of 1,024, by the dataset's order")
    below.spines[["top", "right"]].set_visible(False)


def paint_scale(figure: Any, plans: Result, builds: Result, datasets: Result, by_workers: Result) -> None:
    """Time and memory by images, start by shards, rate by workers."""
    panels = figure.subplots(4, 1)
    seconds, memory, start, workers = panels
    _paint_sizes(plans, builds, seconds, memory)
    _paint_start(datasets, start)
    _paint_workers(by_workers, workers)
    for panel in panels.flat:
        panel.grid(alpha=0.3)
        panel.legend(frameon=False)


def _paint_sizes(plans: Result, builds: Result, seconds: Any, memory: Any) -> None:
    by_images = nest(builds["rows"], "images")
    for sizes, label, colour in (
        (by_images, "building, all processes", DARK),
        (nest(plans["rows"], "images"), "planning", ORANGE),
    ):
        seconds.plot(list(sizes), [each["cpu_seconds"] for each in sizes.values()], "o-", color=colour, label=label)
        key = "launcher_peak_mb" if sizes is by_images else "peak_mb"
        who = label.replace("all processes", "launcher")
        memory.plot(list(sizes), [each[key] for each in sizes.values()], "o-", color=colour, label=who)
    workers = [each["worker_peak_mb"] for each in by_images.values()]
    memory.plot(list(by_images), workers, "o-", color=LIGHT, label="a worker")
    seconds.set(xscale="log", yscale="log", xlabel="images", ylabel="seconds of the CPU", title="Time")
    memory.set(xscale="log", ylim=(0, None), xlabel="images", ylabel="MB at the most", title="Memory of a process")
    _number_plainly(seconds.xaxis, seconds.yaxis, memory.xaxis)


def _paint_start(datasets: Result, start: Any) -> None:
    rows = datasets["rows"]
    shards = [each["records"] // datasets["about"]["records_of_shard"] for each in rows]
    for key, label, colour in (
        ("first_batch_seconds", "first batch of Loader, processes and all", DARK),
        ("open_dataset_seconds", "open_dataset", ORANGE),
    ):
        start.plot(shards, [each[key] for each in rows], "o-", color=colour, label=label)
    start.set(xscale="log", ylim=(0, None), xlabel="shards of a local dataset", ylabel="seconds", title="Start")
    _number_plainly(start.xaxis)


def _paint_workers(by_workers: Result, workers: Any) -> None:
    for name, label, colour in (
        ("Loader", "Loader: crop, flip", DARK),
        ("shard", "shard, full check", ORANGE),
    ):
        rates = nest(by_workers["rows"], "workers", what=name)
        medians = [each["median"] for each in rates.values()]
        spread = [[each["median"] - each["low"], each["high"] - each["median"]] for each in rates.values()]
        workers.errorbar(list(rates), medians, list(zip(*spread, strict=True)), fmt="o-", color=colour, label=label)
    cores = by_workers["machine"]["cores"]
    workers.set(
        ylim=(0, None), xticks=list(rates), xlabel=f"worker processes, on {cores} cores", ylabel="images a second"
    )
    workers.set_title("Throughput")


def paint_soak(figure: Any, soak: Result) -> None:
    """What the process holds that fed longest: a curve for each kind, one below the other."""
    kinds = "memory_mb", "descriptors", "threads"
    axes = figure.subplots(len(kinds), sharex=True)
    minutes = [row["seconds"] / 60 for row in soak["rows"]]
    for axis, kind in zip(axes, kinds, strict=True):
        axis.plot(minutes, [row[kind] for row in soak["rows"]], linewidth=0.8)
        axis.set_ylabel(kind.replace("_", " "))
        axis.set_ylim(bottom=0)
    axes[-1].set_xlabel(f"minutes\n{say_machine(soak['machine'])}")


def _stages_height(stages: Result) -> float:
    return 1.1 + 0.45 * len(stages["rows"]) + 0.24 * sum(len(row["stages"]) for row in stages["rows"])


PICTURES = {
    "idle": Picture(("demo",), paint_idle, lambda demo: 0.9 + 0.42 * len(_emulated(demo))),
    "doctor": Picture(("doctor",), paint_doctor, lambda doctor: 1.2 + 0.5 * len(doctor["rows"])),
    "stages": Picture(("stages",), paint_stages, _stages_height),
    "window": Picture(("window",), paint_window, lambda _: 5.4),
    "soak": Picture(("soak",), paint_soak, lambda _: 6.0),
    "order": Picture(("order",), paint_order, lambda _: 6.6, ROOT / "docs"),
    "scale": Picture(
        ("scale-plan", "scale-build", "scale", "scale-workers"), paint_scale, lambda *_: 9.6, ROOT / "docs"
    ),
}
