"""`tpufeed doctor`."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpufeed.cli import flags
from tpufeed.cli.builds import given
from tpufeed.cli.console import echo, echo_error, find_own_modules, print_json, print_table, reports_errors, status
from tpufeed.text import format_range, format_rate

if TYPE_CHECKING:
    from tpufeed.measure.results import Diagnosis


@reports_errors
def doctor_command(
    url: Annotated[str, typer.Argument(metavar="URL")],
    split: flags.SplitName = None,
    ops: flags.LiveOps = None,
    device_ops: flags.DeviceOps = None,
    tpu: Annotated[str | None, flags.in_device(metavar="NAME", autocompletion=flags.tpus)] = None,
    model: flags.Model = None,
    flops_per_sample: Annotated[float | None, flags.in_device(metavar="FLOPS")] = None,
    step: Annotated[str | None, flags.in_device(metavar="FILE.py:FUNCTION")] = None,
    batch_size: Annotated[int | None, flags.in_device("--batch", metavar="N")] = None,
    seconds: Annotated[float, flags.in_measuring(metavar="S")] = 25.0,
    steps: Annotated[Path | None, flags.in_measuring("--clock", metavar="FILE")] = None,
    profile: Annotated[Path | None, flags.in_measuring(metavar="FOLDER")] = None,
    as_json: flags.AsJson = False,
    report: flags.Report = None,
) -> None:
    """Report how fast this host can feed a TPU, how fast that has to be, the bottleneck, and what to do next.

    The stages are measured on this host, and the idle time is predicted from that.

    Examples:
      tpufeed doctor gs://bucket/flowers --tpu v4-8 --model vit_b_16 --batch 1024 --report doctor.html
      tpufeed doctor flowers --tpu v5e-8 --step train.py:make_step
      tpufeed doctor flowers-256 --device-op "RandomResizedCrop(224)" --device-op HorizontalFlip
    """
    find_own_modules()
    from tpufeed.images.description import parse_op
    from tpufeed.measure.doctor import examine
    from tpufeed.measure.report import check_report_path, write_report
    from tpufeed.measure.step_cost import check_step

    values: dict[str, Any] = locals()
    for name, texts in (("ops", ops), ("device_ops", device_ops)):
        values[name] = None if texts is None else [parse_op(text) for text in texts]
    if report is not None:
        check_report_path(report)
    if step is not None:
        check_step(step)
        echo_error(f"compiling {step} takes seconds or, for a large model, minutes. Its cost is kept for later runs")
    logger = logging.getLogger("tpufeed.stream")
    level = logger.level
    # Otherwise each measurement warns about the same bad records. The diagnosis has a note about them.
    logger.setLevel(logging.ERROR)
    try:
        with status("measuring") as tell:
            diagnosis = examine(listener=tell, **given(examine, values))
    finally:
        logger.setLevel(level)
    if report is not None:
        write_report(report, diagnosis, [])
    if as_json:
        print_json(diagnosis)
        return
    _print(diagnosis)
    if report is not None:
        echo(f"report: {report}")


def _print(diagnosis: "Diagnosis") -> None:
    """Print the stages as a table, the prediction, and what to do next."""
    from tpufeed.measure.prediction import predict_band

    rows = []
    for stage in diagnosis.stages:
        rate = stage.images_per_second
        share = "n/a" if rate is None else f"{rate / diagnosis.needed[1]:,.2f}"
        rows.append((stage.name, format_rate(rate, stage.span), share, stage.why_not if rate is None else stage.detail))
    title = f"{diagnosis.url}, split {diagnosis.split}"
    print_table(title, ("stage", "img/s", "x of need", "what"), rows, prose=True)
    echo(f"needed: {diagnosis.tpu} with {diagnosis.model} takes {diagnosis.need} images a second")
    echo(f"fed: {format_rate(diagnosis.fed, diagnosis.fed_span)} images a second")
    if diagnosis.cores_needed is not None:
        cores, needed = diagnosis.machine["cores"], format_range(*diagnosis.cores_needed)
        echo(f"cores: {cores} here. The loader needs {needed} such cores, if its rate grows with cores")
    if diagnosis.idle_percent is not None:
        bands = [predict_band(end, diagnosis.needed) for end in (diagnosis.fed_span or (diagnosis.fed or 0.0,))]
        least, most = (f"{format_range(min(band), max(band))} %" for band in zip(*bands, strict=True))
        same = least if len(set(diagnosis.needed)) == 1 else f"{least} at either rate"
        echo(f"predicted idle: {same if least == most else f'{least} at its low rate, {most} at its high rate'}")
        echo(f"binds: {diagnosis.binding}")
    echo(diagnosis.verdict)
    if diagnosis.actions:
        echo()
        echo("next, each with its predicted effect:")
    elif diagnosis.idle_percent is not None:
        echo("next: there is nothing to improve here")
    for number, action in enumerate(diagnosis.actions, 1):
        echo(f"{number}. {action.do}")
        if action.effect:
            echo(f"   predicted: {action.effect}")
        if action.cost:
            echo(f"   {action.cost}")
    for note in diagnosis.notes:
        echo(f"note: {note}")
