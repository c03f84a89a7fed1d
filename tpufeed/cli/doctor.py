"""`tpufeed doctor`."""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpufeed.cli.console import print_json, reports_errors, warn
from tpufeed.cli.tables import print_wide_table

if TYPE_CHECKING:
    from tpufeed.diagnosis.doctor import DoctorOptions, Listener
    from tpufeed.diagnosis.results import Action, Diagnosis, Stage


@reports_errors
def doctor_command(
    url: Annotated[
        str, typer.Argument(help="A dataset or cache, or raw images as `tpufeed shard` takes them; a path or URL.")
    ],
    split: Annotated[str | None, typer.Option(help="Which split.", show_default="train, or else the first")] = None,
    tpu: Annotated[
        str | None, typer.Option(help="The TPU to be fed, like v5e-8.", show_default="that of this host, else v3-8")
    ] = None,
    model: Annotated[str | None, typer.Option(help="What it trains.", show_default="resnet50")] = None,
    flops_per_sample: Annotated[
        float | None, typer.Option(help="In place of a model: FLOPs of a training step for one sample.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Samples in a batch of this host.", show_default="128")] = None,
    op: Annotated[
        list[str] | None,
        typer.Option(
            help="What loaders apply, as in `tpufeed cache warmup`. Several times.",
            show_default="the cache's own, else RandomResizedCrop and HorizontalFlip",
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="As for loaders.", show_default="as loaders choose")] = None,
    processes: Annotated[int | None, typer.Option(help="As for loaders.", show_default="as loaders choose")] = None,
    stage_dir: Annotated[Path | None, typer.Option(help="As for loaders.", show_default="as loaders choose")] = None,
    stage_bytes: Annotated[
        str | None, typer.Option(help="As for loaders; 0 stages nothing.", show_default="as loaders choose")
    ] = None,
    seconds: Annotated[float, typer.Option(help="What all measurements may take together, about.")] = 25.0,
    steps: Annotated[
        Path | None, typer.Option(help="What a StepClock saved: whether the step waits on data or on tracing.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="What a profiler wrote: for how much of a step the TPU waited.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
    report: Annotated[
        Path | None, typer.Option(help="Write a page about it, with a short EMULATED run, here: out.html.")
    ] = None,
) -> None:
    """Say what feeds a TPU from here, what it needs, which stage binds and what to do next.

    Measures on this host; the idle time is predicted from that.

    Example: tpufeed doctor gs://bucket/flowers --tpu v5e-8 --batch 1024
    """
    if str(Path.cwd()) not in sys.path:  # where ops of the user's own are found
        sys.path.append(str(Path.cwd()))
    from tpufeed.diagnosis.doctor import DoctorOptions, examine
    from tpufeed.diagnosis.report import check_report_path
    from tpufeed.images.parsing import parse_op

    if report is not None:
        check_report_path(report)
    options = DoctorOptions(
        split=split,
        tpu=tpu,
        model=model,
        flops_per_sample=flops_per_sample,
        batch_size=batch,
        ops=None if op is None else [parse_op(text) for text in op],
        threads=threads,
        processes=processes,
        stage_dir=stage_dir,
        stage_bytes=0 if stage_bytes == "0" else stage_bytes,
        seconds=seconds,
        steps=steps,
        profile=profile,
    )
    logging.getLogger("tpufeed.loaders").setLevel(logging.ERROR)  # or each measurement lists the same bad records
    with _status() as say:
        diagnosis = examine(url, options, say)
        if report is not None:
            _write_report(report, diagnosis, options, say)
    if as_json:
        print_json(diagnosis)
        return
    _print(diagnosis)
    if report is not None:
        print(f"report: {report}")


@contextmanager
def _status() -> Iterator["Listener"]:
    """What is being measured, on a terminal alone."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("looking at it") as status:
        yield lambda what: status.update(f"measuring: {what}")


def _write_report(path: Path, diagnosis: "Diagnosis", options: "DoctorOptions", say: "Listener") -> None:
    from tpufeed.diagnosis.report import write_report
    from tpufeed.diagnosis.stages.checking import check_diagnosis
    from tpufeed.errors import TpufeedError

    say("a short EMULATED run")
    runs = []
    try:
        run = check_diagnosis(diagnosis, options.loader_options(), options.seconds / 4)
        runs += [] if run is None else [run]
    except TpufeedError as error:
        warn(f"the report has no EMULATED run: {error}")
    write_report(path, diagnosis, runs)


def _print(diagnosis: "Diagnosis") -> None:
    low, high = diagnosis.needed
    rows = [_stage_row(stage, high) for stage in diagnosis.stages]
    title = f"{diagnosis.url}, split {diagnosis.split}"
    print_wide_table(title, ("stage", "img/s", "x of need", "what"), rows, prose=True)
    print(f"needed: {diagnosis.tpu} with {diagnosis.model} takes {low:,.0f} to {high:,.0f} images a second")
    print(f"fed: {_figure(diagnosis.fed)} images a second")
    if diagnosis.idle_percent is not None:
        low, high = diagnosis.idle_percent
        print(f"predicted idle: {low:.0f} % at its low rate, {high:.0f} % at its high rate")
        print(f"binds: {diagnosis.binding}")
    print(diagnosis.verdict)
    if diagnosis.actions:
        print("\nnext, with what each is predicted to come to:")
        for number, action in enumerate(diagnosis.actions, 1):
            _print_action(number, action)
    elif diagnosis.idle_percent is not None:
        print("next: nothing here that would help")
    if diagnosis.settings:
        print("\nsettings for this host: " + ", ".join(_setting(*item) for item in diagnosis.settings.items()))
    for note in diagnosis.notes:
        print(f"note: {note}")


def _stage_row(stage: "Stage", needed: float) -> Sequence[str]:
    rate = stage.images_per_second
    share = "n/a" if rate is None else f"{rate / needed:,.2f}"
    return stage.name, _figure(rate), share, stage.detail if rate is not None else stage.why_not


def _print_action(number: int, action: "Action") -> None:
    print(f"{number}. {action.do}")
    effect = list[str]()
    if action.factor is not None:
        effect.append(f"{action.factor:,.1f}x")
    if action.images_per_second is not None:
        effect.append(f"{action.images_per_second:,.0f} images a second")
    if action.idle_percent is not None:
        low, high = action.idle_percent
        effect.append(f"idle {low:.0f} to {high:.0f} %" if high else "no idle")
    if effect:
        print(f"   predicted: {', '.join(effect)}")
    if action.cost:
        print(f"   {action.cost}")


def _setting(name: str, value: object) -> str:
    return f"{name}={value:,}".replace(",", "_") if isinstance(value, int) else f"{name}={value}"


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.0f}"
