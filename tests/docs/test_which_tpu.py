"""docs/which-tpu.md: its figures are those that the doctor uses."""

import re

from tests.docs.pages import text_of
from tpufeed.profiling.tpu import TPUS


def test_the_rates_and_vcpus_are_those_that_the_doctor_uses():
    page = text_of("which-tpu.md")
    rows = re.findall(r"^\| (v\w+-\d)[^|]* \| (\d+) \|[^|]*\|[^|]*\| ([\d,]+) to ([\d,]+) \|", page, re.MULTILINE)
    figures = {name: tuple(int(value.replace(",", "")) for value in values) for name, *values in rows}
    assert figures == {tpu.name: (tpu.vcpus, tpu.low, tpu.high) for tpu in TPUS.values()}
