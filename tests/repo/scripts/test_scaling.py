"""benchmarks/scaling.md: the arithmetic, and that the page shows its present outcome."""

import pytest

from benchmarks import scaling


def test_the_page_shows_what_the_results_come_to():
    text = "\n".join(scaling.iter_lines(scaling.read_results(scaling.RESULTS)))
    start, stop = scaling.MARKS
    assert scaling.PAGE.read_text().partition(start)[2].partition(stop)[0].strip() == text


def test_the_least_of_all_limits_feeds_the_device():
    measured = scaling.Measured(2, dict.fromkeys(scaling.KINDS, 100.0), 1e-4)
    lines = list(scaling.iter_lines(measured))
    row = next(line for line in lines if line.startswith("| JPEG 500x375 | 5,800 to 9,600"))  # 96 vCPUs
    assert row.endswith("| 5,800 to 9,600 | 0 % to 23 % |")
    limited = [line for line in lines if line.startswith("| JPEG 500x375 | 13,000 to 22,000")]  # 224, held up at 10,000
    assert limited[0].endswith("| 10,000 | 58 % |")


@pytest.mark.parametrize(("fed", "idle"), [(50.0, 50.0), (100.0, 0.0), (300.0, 0.0)])
def test_idle_is_what_is_missing_of_the_need(fed, idle):
    assert scaling.idle_percent(fed, 100.0) == idle


def test_writing_changes_what_is_between_the_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"above\n{scaling.MARKS[0]}\nold\n{scaling.MARKS[1]}\nbelow\n")
    scaling.write(page, "new")
    assert page.read_text() == f"above\n{scaling.MARKS[0]}\n\nnew\n\n{scaling.MARKS[1]}\nbelow\n"
