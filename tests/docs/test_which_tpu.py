"""docs/which-tpu.md: its figures are those of the doctor, and its command runs."""

import re

import tpufeed
from tests.docs.pages import commands, make_photos, run_here, text_of
from tpufeed.profiling.tpu import TPUS

PAGE = text_of("which-tpu.md")


def test_the_rates_and_hosts_are_those_that_the_doctor_uses():
    rows = re.findall(r"^\| (v\w+-\d) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", PAGE, re.MULTILINE)
    figures = {name: [int(value.replace(",", "")) for value in values] for name, *values in rows}
    assert figures == {tpu.name: [tpu.low, tpu.high, tpu.peak_tflops] for tpu in TPUS.values()}
    hosts = re.findall(r"^\| ((?:v\w+-\d(?:, )?)+)[^|]*\| (\d+) vCPUs", PAGE, re.MULTILINE)
    assert {name: int(cpus) for names, cpus in hosts for name in names.split(", ")} == {
        tpu.name: tpu.vcpus for tpu in TPUS.values()
    }


def test_the_command_runs(tmp_path):
    make_photos(tmp_path, 20, "160x120")
    tpufeed.shard(tmp_path / "photos", tmp_path / "flowers", workers=1)
    run_here(commands("which-tpu.md"), tmp_path)
