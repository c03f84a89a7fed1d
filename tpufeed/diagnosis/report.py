"""The report: one page of HTML that needs neither network nor script, and a Markdown summary beside it."""

import importlib.util
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from tpufeed.diagnosis.files import write_files
from tpufeed.diagnosis.pages.summary import HEADING, Plot, make_summary, to_markdown
from tpufeed.diagnosis.results import Diagnosis, Run
from tpufeed.errors import MissingExtraError, OptionError, StoreError


def write_report(
    path: Path | str, diagnosis: Diagnosis | None, runs: Sequence[Run], machine: dict[str, Any] | None = None
) -> None:
    """Write the page to `path`, which ends in .html, and a summary of the same name that ends in .md.

    Each file comes whole or not at all; an earlier report is replaced. The same arguments give the same bytes.

    Args:
        path: of the page.
        diagnosis: what the doctor found.
        runs: in order: the first is "before", the last is "after".
        machine: that it was measured on, where no diagnosis says so.

    Raises:
        OptionError: as `check_report_path`, or there is neither a diagnosis nor a run.
        MissingExtraError: matplotlib is not installed.
        StoreError: a file cannot be written.
    """
    path = Path(path)
    check_report_path(path)
    if diagnosis is None and not runs:
        raise OptionError(f"{path}: there is nothing to report; give a diagnosis or a run")
    from tpufeed.diagnosis.pages.page import to_html

    summary = make_summary(diagnosis, runs, _draw(diagnosis, runs), machine)
    texts = {path: to_html(summary), _markdown_path(path): to_markdown(summary)}
    write_files({place: partial(_write, text) for place, text in texts.items()})


def check_report_path(path: Path | str) -> None:
    """Whether a report can be written to `path`: to be asked before measurements that take minutes.

    Raises:
        OptionError: another ending than .html, no such folder, a folder, or a .md beside it that is no such summary.
        MissingExtraError: matplotlib is not installed.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise OptionError(f"{path}: a report's name ends in .html")
    if not path.parent.is_dir():
        raise OptionError(f"{path}: there is no folder {path.parent}; make it first")
    for file in (path, _markdown_path(path)):
        if file.is_dir():
            raise OptionError(f"{file} is a folder; give the name of a file")
    if not _is_ours(_markdown_path(path)):
        raise OptionError(f"{path}: its summary would replace {_markdown_path(path)}, which is none; take another name")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "report")


def _draw(diagnosis: Diagnosis | None, runs: Sequence[Run]) -> tuple[Plot, ...]:
    from tpufeed.diagnosis.pages.canvas import settings
    from tpufeed.diagnosis.pages.plots import iter_plots

    with settings():
        return tuple(iter_plots(diagnosis, runs))


def _markdown_path(path: Path) -> Path:
    return path.with_suffix(".md")


def _is_ours(summary: Path) -> bool:
    try:
        with summary.open("rb") as file:
            return file.read(len(HEADING)) == HEADING.encode()
    except FileNotFoundError:
        return True
    except OSError as error:
        raise StoreError(f"{summary}: {error.strerror or error}") from error


def _write(text: str, file: IO[bytes]) -> None:
    file.write(text.encode("utf-8", "replace"))
