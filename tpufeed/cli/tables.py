"""Tables, also on terminals that are not wide enough for them."""

import sys
from collections.abc import Collection, Sequence

from tpufeed.cli.console import echo, printable
from tpufeed.cli.progress import is_terminal

_PIPE_COLUMNS = 200  # where rich would take 80
_PIPED_PROSE_COLUMNS = 100  # wider text is hard to read in a log or a mail
_PROSE_COLUMNS = 30  # narrower columns of text are hard to read


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    texts: Collection[int] = (0,),
    prose: bool = False,
) -> None:
    """Print a table on stdout where there is room for it, else a line a row.

    Args:
        title: above it.
        columns: their names.
        rows: their cells.
        texts: the numbers of the columns that hold text; the others hold figures.
        prose: whether the last column is text that may be folded.
    """
    from rich.box import SIMPLE
    from rich.cells import cell_len
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    columns, rows = list(map(printable, columns)), [list(map(printable, row)) for row in rows]
    table = Table(box=SIMPLE)
    for number, column in enumerate(columns):
        folds = prose and number == len(columns) - 1
        width = _PROSE_COLUMNS if folds else max(cell_len(cells[number]) for cells in (columns, *rows))
        figures = not folds and number not in texts
        table.add_column(column, justify="right" if figures else "left", no_wrap=not folds, min_width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    echo(title)  # not the table's, which would fold it to the table's width
    seen = is_terminal(sys.stdout)
    console = Console(highlight=False, width=None if seen else _PIPED_PROSE_COLUMNS if prose else _PIPE_COLUMNS)
    unlimited = console.options.update(width=_PIPE_COLUMNS)
    if seen and Measurement.get(console, unlimited, table).minimum > console.width:
        for row in rows:
            named = [f"{column} {cell}" for column, cell in zip(columns[1:], row[1:], strict=True)]
            if prose:  # text needs no name
                named[-1:] = [row[-1]] if row[-1] else []
            echo(f"{row[0]}: {', '.join(named)}")
        return
    console.print(table)
