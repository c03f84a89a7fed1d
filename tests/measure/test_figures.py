"""Figures of a report: what is drawn, and what their captions say."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.measure.report_example import make_diagnosis, make_run, write
from tpufeed.measure.clock import StepTimes


@pytest.mark.all
def test_thousands_of_steps_are_drawn_as_means(tmp_path: Path) -> None:
    page = write(tmp_path, make_diagnosis(), [make_run(f"{n}, numpy", 20.0, 20_000) for n in range(9)])
    assert (tmp_path / "out.html").stat().st_size < 600_000
    assert page.tags["svg"] == 2 + 8
    assert "20,000 steps: " in page.captions[2]
    assert "drawn as 100 means" in page.captions[2]
    assert "Run 9: " in page.text
    assert "9 runs: the figures show the first 4 and the last 4." in page.text


@pytest.mark.all
def test_captions_tell_what_the_figures_show(tmp_path: Path) -> None:
    timeline = StepTimes(
        wait_seconds=(2.0, *[0.01] * 9, 0.91), compute_seconds=(3.0, *[0.09] * 10), ready=(0, 0, *[1] * 9)
    )
    page = write(tmp_path, None, [make_run("u, numpy", 9.0, 11, timeline=timeline, device="xla-cpu")])
    told = page.captions[-1]
    for part in (
        "11 steps: wait 52.6 %, compute 47.4 %",
        "it took 5 s, of which 2 s waiting",
        "at most 10 ms",
        "longest 910 ms",
    ):
        assert part in told
    assert "The highest, 1 s, is cut off." in told
    assert "On average 0.8 batches were ready" in told


@pytest.mark.all
@pytest.mark.parametrize(
    "timeline",
    [
        StepTimes(wait_seconds=(0.0,)),
        StepTimes(wait_seconds=(1.0, 5e-9, 1e3), ready=(1, 1, 0)),
        StepTimes(wait_seconds=(0.0, 0.0, 2.0), sync_seconds=(1.0, 1.0, 0.0)),
    ],
)
def test_odd_timelines_are_drawn_or_left_out(timeline: StepTimes, tmp_path: Path) -> None:
    page = write(tmp_path, None, [make_run("u, numpy", 9.0, 3, timeline=timeline)])
    assert page.tags["svg"] >= 2
    assert not re.search(r"\bnan\b|\binf\b", " ".join(value for _, name, value in page.attributes if name == "d"))


@pytest.mark.all
def test_needs_are_those_of_the_model(tmp_path: Path) -> None:
    diagnosis = make_diagnosis()
    text = write(tmp_path, replace(diagnosis, needed=(2_050.0, 3_750.0)), []).text
    assert "2.05k to 3.75k" in text  # of its own TPU
    assert "750 to 1.37k" in text  # of v2-8, in the same proportion
    other = write(tmp_path, replace(diagnosis, tpu="v9-1", needed=(2_050.0, 3_750.0)), []).text
    assert "2.05k to 3.75k" in other
    assert "1.5k to 2.74k" in other  # v2-8's own rate, for ResNet-50


@pytest.mark.all
def test_actions_are_labelled_by_whole_words_of_what_they_do(tmp_path: Path) -> None:
    raw, *others = make_diagnosis().actions
    long = replace(
        raw, do="read a cache of whole images with device_ops=[RandomResizedCrop(224), HorizontalFlip()]: tpufeed"
    )
    write(tmp_path, replace(make_diagnosis(), actions=(raw, long, *others)), [])
    labels = re.findall(r">(action \d: [^<]*)<", (tmp_path / "out.html").read_text())
    assert labels == [
        "action 1: Warm a raw cache (predicted)",
        "action 2: read a cache of whole images… (predicted)",
        "action 3: Use 96 threads in 4 processes (predicted)",
    ]
