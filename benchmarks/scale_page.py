"""The figures of `benchmarks/scale.md`: what `scale.py` saved, and its cost by `costs.py`. Prints Markdown.

    python benchmarks/run.py scale-page [--write]

`--write` puts them into the page, between its two marks, and `plot scale` draws them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import costs
from benchmarks.curves import slope_of
from benchmarks.entry import FOLDER, RESULTS, make_parser
from benchmarks.harness import nest, read_result

PAGE = FOLDER / "scale.md"
MARKS = "<!-- from here on: benchmarks/run.py scale-page --write -->", "<!-- up to here -->"
NAMES = "scale", "scale-plan", "scale-build", "scale-workers", "scale-16-workers"


def main(arguments: list[str]) -> None:
    parser = make_parser("scale-page", __doc__, save=False)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    text = "\n".join(iter_lines(RESULTS))
    if not options.write:
        print(text)
        return
    write(PAGE, text)


def iter_lines(folder: Path) -> Iterator[str]:
    """All between the marks."""
    yield from iter_measured_lines(read(folder))
    yield ""
    yield "## What it comes to"
    yield ""
    yield from costs.iter_lines(costs.read_results(folder))


def read(folder: Path) -> dict[str, Any]:
    """The result files."""
    return {name: read_result(name, folder) for name in NAMES}


def iter_measured_lines(found: dict[str, Any]) -> Iterator[str]:
    """Tables of the four curves."""
    for part, columns in (
        ("build", ("seconds", "cpu_seconds", "launcher_cpu_seconds", "launcher_peak_mb", "worker_peak_mb")),
        ("plan", ("seconds", "cpu_seconds", "peak_mb", "plan_mb")),
    ):
        yield from _iter_size_lines(f"scale-{part}", found[f"scale-{part}"], columns)
        yield ""
    yield from _iter_shard_lines(found["scale"])
    for name in ("scale-workers", "scale-16-workers"):
        yield ""
        yield from _iter_worker_lines(name, found[name])


def _iter_worker_lines(name: str, result: dict[str, Any]) -> Iterator[str]:
    rates = nest(result["rows"], "what", "workers")
    counts = list(map(str, rates["shard"]))
    yield f"Images a second by worker processes ({_where(name, result)}):"
    yield ""
    yield f"| | {' | '.join(counts)} |"
    yield f"|---|{'---:|' * len(counts)}"
    for what, label in (("shard", "`shard`, full check"), ("Loader", "`Loader`, crop and flip")):
        cells = [f"{each['median']:,.0f} ({each['low']:,.0f} to {each['high']:,.0f})" for each in rates[what].values()]
        yield f"| {label} | {' | '.join(cells)} |"


def _iter_size_lines(name: str, result: dict[str, Any], columns: tuple[str, ...]) -> Iterator[str]:
    what = "Building" if name == "scale-build" else "Planning"
    yield f"{what} ({_where(name, result)}, of more than 100,000 one run):"
    yield ""
    heads = [column.replace("_mb", " MB").replace("_seconds", " seconds").replace("_", " ") for column in columns]
    yield f"| images | {' | '.join(heads)} | us of the CPU an image more | beside 10,000 to 100,000 |"
    yield f"|---:|{'---:|' * (len(columns) + 2)}"
    measured = nest(result["rows"], "images")
    sizes = sorted(measured)
    slopes: list[float] = []
    for place, size in enumerate(sizes):
        cells = [f"{measured[size][column]:,.{_digits(column)}f}" for column in columns]
        if size > 10_000:
            slopes.append(slope_of(measured, "cpu_seconds", sizes[place - 1], size))
            cells += [f"{slopes[-1] * 1e6:.1f}", f"{100 * (slopes[-1] / slopes[0] - 1):+.1f} %" if slopes[1:] else ""]
        else:
            cells += ["", ""]
        yield f"| {size:,} | {' | '.join(cells)} |"


def _digits(column: str) -> int:
    return 0 if column.endswith("peak_mb") else 2


def _iter_shard_lines(result: dict[str, Any]) -> Iterator[str]:
    yield f"Shards ({_where('scale', result)}):"
    yield ""
    yield "| shards | records | manifest MB | `open_dataset`, s | `Loader`, s | its first batch, s | MB |"
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    for size, each in sorted(nest(result["rows"], "records").items()):
        yield (
            f"| {size // result['about']['records_of_shard']:,} | {size:,} | {each['manifest_mb']:.2f} | "
            f"{each['open_dataset_seconds']:.3f} | {each['open_seconds']:.2f} | {each['first_batch_seconds']:.2f} | "
            f"{each['memory_mb']:.0f} |"
        )


def _where(name: str, result: dict[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"[result](results/{name}.json); {machine['cores']} cores, load {machine['load']}, "
        f"{machine['date']}, medians of {result['about']['repeats']}"
    )


def write(page: Path, text: str) -> None:
    """Put the figures between the page's marks."""
    before, _, rest = page.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    page.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")
