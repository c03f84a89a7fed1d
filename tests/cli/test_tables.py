"""Wide tables, on terminals that are wide enough and on others."""

import pytest

from tests.cli.test_terminal import ESCAPE
from tpufeed.cli import console

COLUMNS = ("fed from", "img/s", "idle %")
ROWS = [("EMULATED größe猫, numpy", "7,500", "0.4"), ("EMULATED größe猫, naive", "310", "95.9")]
STAGES = [("storage", "135,626", "page cache, 1.5 GB/s, all of it"), ("ops", "n/a", "")]


@pytest.fixture
def show(monkeypatch, capsys):
    """`show(width, ...)`: the lines that a terminal of so many columns gets; of a pipe for None."""

    def show(width, *arguments, **options):
        monkeypatch.setenv("COLUMNS", str(width or 20))
        monkeypatch.setattr(console, "is_terminal", lambda _: width is not None)
        console.print_table("EMULATED device", *arguments, **options)
        return [line.rstrip() for line in ESCAPE.sub("", capsys.readouterr().out).splitlines() if line.strip()]

    return show


@pytest.mark.parametrize("width", [None, 60])
def test_a_row_is_a_line_of_the_table(show, width):
    title, names, rule, *rows = show(width, COLUMNS, ROWS)
    assert (title, names.split()) == ("EMULATED device", ["fed", "from", "img/s", "idle", "%"])
    assert set(rule.strip()) == {"─"}
    assert [row.split() for row in rows] == [[*row[0].split(), *row[1:]] for row in ROWS]


def test_where_it_does_not_fit_nothing_is_cut_off(show):
    assert show(40, COLUMNS, ROWS) == [
        "EMULATED device",
        "EMULATED größe猫, numpy: img/s 7,500, idle % 0.4",
        "EMULATED größe猫, naive: img/s 310, idle % 95.9",
    ]


def test_prose_is_folded_while_there_is_room(show):
    columns = ("stage", "img/s", "what")
    folded = show(56, columns, [("storage", "135,626", "page cache " * 6), *STAGES], prose=True)
    assert len(folded) > 6
    assert show(30, columns, STAGES, prose=True) == [
        "EMULATED device",
        "storage: img/s 135,626, page cache, 1.5 GB/s, all of it",
        "ops: img/s n/a",
    ]
