"""`tpufeed bench`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpufeed.cli.console import print_json, reports_errors
from tpufeed.cli.tables import print_wide_table
from tpufeed.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpufeed.diagnosis.bench import BenchResult
    from tpufeed.diagnosis.results import Run

_EMULATED = "EMULATED"


@reports_errors
def bench_command(
    url: Annotated[list[str], typer.Argument(help="Datasets or caches; paths or URLs.")],
    loader: Annotated[
        list[str] | None,
        typer.Option(
            help="numpy, torch, tf, tf-direct, xla, jax, or naive: one thread and Pillow. Several times.",
            show_default="numpy",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="emulated:PROFILE, like emulated:tpu-v5e-8-low or emulated:mlperf-h100; emulated with --step-ms; "
            "xla-cpu, xla-tpu, jax-cpu, jax-tpu for a small real step; none only drains the loader.",
            show_default="emulated:tpu-v3-8",
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Images a step.", show_default="128; 400 of MLPerf's profiles")
    ] = None,
    step_ms: Annotated[float | None, typer.Option(help="Of an emulated accelerator of your own.")] = None,
    steps: Annotated[int | None, typer.Option(help="Of each measurement.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Of each measurement.", show_default="8")] = None,
    repeats: Annotated[int, typer.Option(help="Measurements of each loader, in turns.")] = 3,
    warm_up: Annotated[
        int, typer.Option(help="Short rounds before them that count for nothing; 0 leaves a cold page cache cold.")
    ] = 1,
    split: Annotated[str, typer.Option(help="Which part of the dataset.")] = "train",
    op: Annotated[
        list[str] | None,
        typer.Option(
            help="What loaders apply live, as in `tpufeed cache warmup`. Several times.",
            show_default="RandomResizedCrop and HorizontalFlip; a cache's final ops",
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="That decode, in each process.")] = None,
    processes: Annotated[int | None, typer.Option(help="Worker processes that decode; 0 for none.")] = None,
    model: Annotated[
        str | None, typer.Option(help="What an emulated TPU trains, and MFU is of.", show_default="resnet50")
    ] = None,
    tpu: Annotated[str | None, typer.Option(help="v5e-8 is short for --device emulated:tpu-v5e-8.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
    save: Annotated[Path | None, typer.Option(help="Write the whole result to this file, as JSON.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page of plots to this file: out.html.")] = None,
) -> None:
    """Feed an accelerator, real or emulated, and say how long it waits.

    Every loader is measured in processes of its own, in turns with the others; figures are medians and leave out the
    first step. Where the measurement is not to be trusted there is no verdict, but a reason.

    Example: tpufeed bench flowers flowers-224 --loader naive --loader numpy --device emulated:tpu-v3-8
    """
    if str(Path.cwd()) not in sys.path:  # of functions that --op names, as `tpufeed cache warmup` finds them
        sys.path.append(str(Path.cwd()))
    from tpufeed.diagnosis.bench import bench
    from tpufeed.diagnosis.feeds.options import BenchOptions
    from tpufeed.diagnosis.report import check_report_path, write_report

    if save is not None and (save.is_dir() or not save.parent.is_dir()):
        raise OptionError(f"the result cannot be written to {save}: it is a folder, or is in none that there is")
    if report is not None:
        check_report_path(report)
    options = BenchOptions(
        device=device,
        batch_size=batch,
        step_ms=step_ms,
        steps=steps,
        seconds=seconds,
        repeats=repeats,
        warm_up=warm_up,
        split=split,
        ops=None if op is None else tuple(op),
        threads=threads,
        processes=processes,
        model=model,
        tpu=tpu,
    )
    result = bench(url, loader or ["numpy"], options, listen=lambda said: print(f"feeding {said} ...", file=sys.stderr))
    if save is not None:
        _save(save, result)
    if report is not None:
        write_report(report, None, result.runs, result.machine)
    print_json(result) if as_json else _print(result)


def _print(result: "BenchResult") -> None:
    """A table, verdicts and problems; each line says EMULATED where the device is."""
    from tpufeed.diagnosis.machine import describe, describe_place

    first = result.runs[0]
    mark = f"{_EMULATED} " if first.device.startswith(_EMULATED) else ""
    title = f"{first.device}, batches of {first.batch_size}, {result.options.repeats} repeats"
    cells = [_cells(run) for run in result.runs]
    rows = [(f"{mark}{name}", *row.values()) for name, row in zip(_names(result.runs), cells, strict=True)]
    print_wide_table(title, (f"{mark}fed from", *cells[0]), rows)
    for run in result.runs:
        for problem in run.problems:
            print(f"{mark}{run.label}: no verdict: {problem}")
        if run.verdict:
            print(f"{mark}{run.label}: {run.verdict}")
    for place in result.places:
        print(f"{mark}from {describe_place(place)}")
    print(f"{mark}on {describe(result.machine)}")


def _names(runs: "Sequence[Run]") -> list[str]:
    """Short ones, where the last parts of the URLs tell them apart."""
    short = {run.url: run.url.rstrip("/").rpartition("/")[2] for run in runs}
    if len(set(short.values())) < len(short):
        return [run.label for run in runs]
    return [f"{short[run.url]}, {run.loader}" for run in runs]


def _cells(run: "Run") -> dict[str, str]:
    """Figures by column. An emulated accelerator has no counters, and a real one no nominal times."""
    rates = run.rates
    shares = {"AU %": run.au_percent}
    start = {"late %": run.oversleep_percent}
    if not run.device.startswith(_EMULATED):
        shares = {"MXU %": run.mxu_percent, "duty %": run.duty_cycle_percent}
        start = {"compile s": run.compile_seconds}
    waits = {"wait ms p50": run.wait_ms_p50, "p95": run.wait_ms_p95, "p99": run.wait_ms_p99}
    return {
        "img/s": _figure(run.images_per_second, 0),
        "of": "n/a" if rates is None else f"{rates.lowest:,.0f} to {rates.highest:,.0f}",
        "idle %": _figure(run.idle_percent),
        **{name: _figure(value) for name, value in {**shares, "MFU %": run.mfu_percent, **waits, **start}.items()},
        "first batch s": _figure(run.first_batch_seconds, 2),
    }


def _figure(value: float | None, digits: int = 1) -> str:
    return "n/a" if value is None else f"{value:,.{digits}f}"


def _save(path: Path, result: "BenchResult") -> None:
    import msgspec

    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    except OSError as error:
        raise OptionError(f"the result cannot be written to {path}: {error.strerror or error}") from error
