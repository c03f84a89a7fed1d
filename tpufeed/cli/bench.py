"""`tpufeed bench`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpufeed.cli import flags
from tpufeed.cli.builds import given
from tpufeed.cli.console import echo, echo_error, find_own_modules, print_json, print_table, reports_errors
from tpufeed.errors import mask_secrets
from tpufeed.text import format_count, format_figure, format_range

if TYPE_CHECKING:
    from tpufeed.measure.bench import BenchResult
    from tpufeed.measure.results import BenchRun

_LOADERS = "numpy, torch, tf, tf-direct, xla, jax, or naive: one thread and Pillow. Repeatable."


@reports_errors
def bench_command(
    url: Annotated[
        list[str],
        typer.Argument(metavar="URL...", help="Datasets or caches: paths or URLs. URL=0.7,URL=0.3 is a mixture."),
    ],
    loader: Annotated[
        list[str] | None,
        flags.in_data(metavar="NAME", autocompletion=flags.one_of(*flags.LOADERS), help=_LOADERS, show_default="numpy"),
    ] = None,
    split: Annotated[str, flags.in_data(metavar="NAME")] = "train",
    ops: flags.LiveOps = None,
    device_ops: flags.DeviceOps = None,
    threads: Annotated[
        int | None, flags.in_data(metavar="N", help="Decoding threads per process.", show_default="chosen by loaders")
    ] = None,
    processes: Annotated[
        int | None,
        flags.in_data(metavar="N", help="Worker processes that decode; 0 for none.", show_default="chosen by loaders"),
    ] = None,
    device: Annotated[str | None, flags.in_device(metavar="DEVICE", autocompletion=flags.devices)] = None,
    tpu: Annotated[str | None, flags.in_device(metavar="NAME", autocompletion=flags.tpus)] = None,
    model: flags.Model = None,
    batch_size: Annotated[int | None, flags.in_device("--batch", metavar="N")] = None,
    step_ms: Annotated[float | None, flags.in_device(metavar="MS")] = None,
    steps: Annotated[int | None, flags.in_measuring(metavar="N")] = None,
    seconds: Annotated[float | None, flags.in_measuring(metavar="S")] = None,
    repeats: Annotated[int, flags.in_measuring(metavar="N")] = 3,
    warm_up: Annotated[int, flags.in_measuring(metavar="N")] = 1,
    as_json: flags.AsJson = False,
    save: Annotated[
        Path | None, flags.in_output(metavar="FILE", help="Write the whole result to this file, as JSON.")
    ] = None,
    report: flags.Report = None,
) -> None:
    """Feed an accelerator, real or emulated, and say how long it waits.

    Each measurement has its own process, and the loaders take turns. Figures are medians, without the first step. If a
    measurement cannot be trusted, it has a reason instead of a verdict. The command takes about datasets x loaders x
    (repeats x seconds + warm-ups x 2 s), and some seconds to start each measurement. A loader that is too slow for a
    verdict is measured for up to a minute longer.

    Examples:
      tpufeed bench flowers flowers-224 --loader naive --loader numpy
      tpufeed bench gs://bucket/flowers-224 --loader tf --tpu v5e-8 --batch 1024 --report bench.html
      tpufeed bench flowers-256 --device-op "RandomResizedCrop(224)" --step-ms 40 --batch 256 --save result.json
    """
    find_own_modules()
    values: dict[str, Any] = locals() | {
        "ops": None if ops is None else tuple(ops),
        "device_ops": tuple(device_ops or ()),
    }
    import msgspec

    from tpufeed.measure.bench import BenchOptions, bench
    from tpufeed.measure.files import check_output, write_file
    from tpufeed.measure.report import check_report_path, write_report

    if save is not None:
        check_output(save)
    if report is not None:
        check_report_path(report)
    options = BenchOptions(**given(BenchOptions, values))
    result = bench(url, loader or ["numpy"], options, listen=lambda said: echo_error(f"feeding {said} ..."))
    if save is not None:
        text = mask_secrets(msgspec.json.format(msgspec.json.encode(result), indent=1).decode()) + "\n"
        write_file(save, text.encode())
    if report is not None:
        write_report(report, None, result.runs, result.machine)
    print_json(result) if as_json else _print(result)


def _print(result: "BenchResult") -> None:
    """Print a table, verdicts and problems. Each line says EMULATED if the device is emulated."""
    from tpufeed.measure.machine import describe, describe_place

    runs = result.runs
    mark = "EMULATED " if runs[0].emulated else ""
    folders = [run.source if run.source == "mixture" else run.url.rstrip("/").rpartition("/")[2] for run in runs]
    later = ", device ops" if result.options.device_ops else ""
    names = [f"{folder}, {run.loader}{later}" for folder, run in zip(folders, runs, strict=True)]
    if len(set(names)) < len({run.label for run in runs}):  # several URLs have the same last part
        names = [run.label for run in runs]
    # Column: (field of a run, digits). An emulated accelerator has no counters, and a real one has no nominal times.
    if runs[0].emulated:
        shares, start = {"AU %": ("au_percent", 1)}, {"late %": ("oversleep_percent", 1)}
    else:
        shares = {"MXU %": ("mxu_percent", 1), "duty %": ("duty_cycle_percent", 1)}
        start = {"compile s": ("compile_seconds", 1)}
    columns = {"img/s": ("images_per_second", 0), "of": ("rates", 0), "idle %": ("idle_percent", 1), **shares}
    columns |= {"MFU %": ("mfu_percent", 1), "wait ms p50": ("wait_ms_p50", 1), "p95": ("wait_ms_p95", 1)}
    columns |= {"p99": ("wait_ms_p99", 1), **start, "first batch s": ("first_batch_seconds", 2)}
    rows = []
    for name, run in zip(names, runs, strict=True):
        of = "n/a" if run.rates is None else format_range(run.rates.lowest, run.rates.highest)
        cells = [of if field == "rates" else format_figure(getattr(run, field), "", n) for field, n in columns.values()]
        rows.append((f"{mark}{name}", *cells))
    title = f"{runs[0].device}, batches of {runs[0].batch_size}, {format_count(result.options.repeats, 'repeat')}"
    print_table(title, (f"{mark}fed from", *columns), rows)
    for sentence in _iter_verdicts(runs):
        echo(f"{mark}{sentence}")
    if later and result.options.choice.kind in ("emulated", "none") and any(run.loader == "numpy" for run in runs):
        echo(f"{mark}device ops are left to the device by the loader numpy, and their work there is not counted")
    for place in result.places:
        echo(f"{mark}from {describe_place(place)}")
    echo(f"{mark}on {describe(result.machine)}")


def _iter_verdicts(runs: "Sequence[BenchRun]") -> Iterator[str]:
    """Yield the verdict of each row, or the reason why it has none. Yield a reason that all rows share once."""
    shared = [problem for problem in runs[0].problems if len(runs) > 1 and all(problem in run.problems for run in runs)]
    for problem in shared:
        yield f"no verdict for any row: {problem}"
    for run in runs:
        yield from (f"{run.label}: no verdict: {problem}" for problem in run.problems if problem not in shared)
        if run.verdict:
            yield f"{run.label}: {run.verdict}"
