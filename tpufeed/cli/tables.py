"""Tables that not every terminal is wide enough for."""

from collections.abc import Sequence

_PIPE_COLUMNS = 200  # where rich would take 80
_PROSE_COLUMNS = 30  # narrower columns of text are hard to read


def print_wide_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], prose: bool = False) -> None:
    """A table on stdout where there is room for it, else a line a row.

    Args:
        title: above it.
        columns: their names. The first column is text, the others are figures.
        rows: their cells.
        prose: whether the last column is text too, which may be folded.
    """
    from rich.box import SIMPLE
    from rich.cells import cell_len
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=SIMPLE)
    for number, column in enumerate(columns):
        folds = prose and number == len(columns) - 1
        width = _PROSE_COLUMNS if folds else max(cell_len(cells[number]) for cells in (columns, *rows))
        figures = number > 0 and not folds
        table.add_column(column, justify="right" if figures else "left", no_wrap=not folds, min_width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_COLUMNS
    unlimited = console.options.update(width=_PIPE_COLUMNS)
    if console.is_terminal and Measurement.get(console, unlimited, table).minimum > console.width:
        print(title)
        for row in rows:
            print(f"{row[0]}: {', '.join(_say_cells(columns[1:], row[1:], prose))}")
        return
    console.print(table)


def _say_cells(columns: Sequence[str], cells: Sequence[str], prose: bool) -> list[str]:
    said = [f"{column} {cell}" for column, cell in zip(columns, cells, strict=True)]
    return [*said[:-1], *filter(None, cells[-1:])] if prose else said
