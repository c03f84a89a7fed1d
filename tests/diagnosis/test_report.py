"""The report: what it says, that it is whole, that texts stay texts, and what it refuses."""

import re
import sys
import tempfile
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.report_example import NASTY, make_diagnosis, make_run, make_runs, make_xla_run
from tpufeed.diagnosis.pages.summary import escape, say, say_range
from tpufeed.diagnosis.report import check_report_path, write_report
from tpufeed.diagnosis.results import Action, Run, Timeline
from tpufeed.errors import MissingExtraError, OptionError, StoreError

_VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """Elements and texts of a page; every element that opens must close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.captions: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "figcaption":
            self.captions.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        data = data.replace("\u00a0", " ")
        self.text += data
        if self._open and self._open[-1] == "figcaption":
            self.captions[-1] += data

    def values(self, attribute: str) -> list[str]:
        return [value for _, name, value in self.attributes if name == attribute]


def write(folder: Path, *of: Any) -> tuple[Page, str]:
    path = folder / "out.html"
    write_report(path, *of)
    return Page(path.read_text()), path.with_suffix(".md").read_text()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, str]:
    return write(tmp_path_factory.mktemp("report"), make_diagnosis(), [*make_runs(150), make_xla_run()])


def test_verdict_actions_and_all_plots_are_there(full: tuple[Page, str]) -> None:
    page, markdown = full
    for text in (page.text, markdown):
        assert text.index(make_diagnosis().verdict) < text.index("What to do next") < text.index("Warm a raw cache")
        for part in ("41,300 images a second", "9.2 GB, about 12 minutes", "no TPU on this host", "128,000,000"):
            assert part in text
        for part in ("AMD EPYC 9B14", "Page cache warm", "predicted", "recompilations", "Predicted from what was"):
            assert part in text
    assert page.tags["svg"] == page.tags["figcaption"] == page.tags["desc"] == 2 + 3 * 3 + 2
    assert {value for tag, name, value in page.attributes if (tag, name) == ("svg", "role")} == {"img"}
    assert set(page.values("aria-labelledby")) <= {" ".join(pair) for pair in _titles(page)}


def _titles(page: Page) -> list[tuple[str, str]]:
    ids = page.values("id")
    return [(one, one.removesuffix("title") + "desc") for one in ids if one.endswith("-title")]


def test_what_is_emulated_or_predicted_says_so_at_its_picture(full: tuple[Page, str]) -> None:
    page, markdown = full
    emulated = ["EMULATED" in caption for caption in page.captions]
    assert emulated == [True] * 11 + [False] * 2  # the last run has a device
    assert ["Hatched is predicted" in caption for caption in page.captions] == [True] * 2 + [False] * 11
    assert "(predicted)" in page.text
    assert markdown.count("EMULATED: no accelerator was used") == 12


def test_ids_are_unique_and_all_references_are_to_them(full: tuple[Page, str]) -> None:
    page, _ = full
    ids = page.values("id")
    assert len(ids) == len(set(ids)) > 100
    referred = [value[1:] for value in page.values("href") if value.startswith("#")]
    referred += re.findall(r"url\(#([^)]+)\)", " ".join(value for _, _, value in page.attributes))
    assert referred
    assert set(referred) <= set(ids)


def test_nothing_is_loaded_and_nothing_runs(full: tuple[Page, str]) -> None:
    page, _ = full
    assert not page.tags.keys() & {"script", "img", "iframe", "object", "image", "foreignobject"}
    assert page.tags["style"] == 1  # matplotlib's own would be for the whole page
    links = [value for name in ("href", "src", "xlink:href") for value in page.values(name)]
    assert {link for link in links if not link.startswith("#")} == {"data:,"}
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "default-src 'none'" in " ".join(page.values("content"))


def test_texts_stay_texts(tmp_path: Path) -> None:
    action = Action(do=f"Do {NASTY}", idle_percent=(1, 2), images_per_second=5000.0, cost=NASTY)
    diagnosis = make_diagnosis()
    facts = {name: getattr(diagnosis, name) for name in diagnosis.__dataclass_fields__}
    nasty = facts | {
        "url": NASTY,
        "verdict": NASTY,
        "notes": (NASTY,),
        "actions": (action,),
        "settings": {NASTY: NASTY},
    }
    run = make_run(NASTY, 30.0, 12, url=NASTY, loader=NASTY, verdict=NASTY, problems=(NASTY,))
    page, markdown = write(tmp_path, type(diagnosis)(**nasty | {"machine": {"cpu": NASTY}, "binding": NASTY}), [run])
    assert "script" not in page.tags
    assert page.text.count(NASTY.replace("\0", "\ufffd")) >= 10
    assert "p1" not in page.values("id")
    table = [line for line in markdown.splitlines() if line.startswith("| ")]
    assert "<" not in markdown
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {3, 4}


def test_labels_stand_in_pictures_as_they_are(tmp_path: Path) -> None:
    page, _ = write(tmp_path, None, [make_run("$a_1$ <b> &amp;", 9.0, 3), make_run("b", 9.0, 3)])
    assert "before: $a_1$ <b> &amp; (EMULATED)" in page.text  # captions begin with a large letter


@given(st.text())
def test_escaped_markdown_holds_no_markup(text: str) -> None:
    escaped = escape(text)
    assert "\n" not in escaped
    assert not re.search(r"(?<!\\)(?:\\\\)*[|`*\[\]]", escaped)
    assert not set("<>") & set(escaped)


def test_what_is_not_known_is_never_nought(tmp_path: Path) -> None:
    run = Run(label="a", url="u", loader="numpy", source="shards", device="none", batch_size=8, steps=1, images=8)
    page, markdown = write(tmp_path, None, [run])
    assert page.tags["svg"] == 0
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", markdown, re.MULTILINE))
    assert rows["images"] == "8"
    unknown = set(rows) - {"figure", "---", "dataset", "loader", "device", "batch", "steps", "images"}
    assert len(unknown) == 19
    assert {rows[name] for name in unknown} == {"n/a"}
    assert "Idle n/a" in page.text
    assert say(float("nan")) == say(None) == say_range((1.0, float("inf"))) == "n/a"


def test_a_run_with_problems_has_no_verdict(tmp_path: Path) -> None:
    run = make_run("b, numpy", 1.0, 5, problems=("It dropped 3 images.", "It slept too long."))
    page, markdown = write(tmp_path, None, [run], {"cpu": "EPYC", "turbo": False})
    for text in (page.text, markdown):
        assert "EPYC" in text
        assert "No verdict: It dropped 3 images." in text
        assert "It slept too long." in text
        assert run.verdict not in text
        assert "Not to be trusted, for problems that are told above: run 1." in text
    assert "card verdict " in page.values("class")  # of no colour


def test_thousands_of_steps_are_binned_and_it_says_so(tmp_path: Path) -> None:
    page, _ = write(tmp_path, make_diagnosis(), [make_run(f"{n}, numpy", 20.0, 100_000) for n in range(12)])
    assert (tmp_path / "out.html").stat().st_size < 500_000
    assert page.tags["svg"] == 2 + 3 * 8
    assert "100,000 steps, drawn as 100 means of 999 or 1,000 steps each" in page.captions[2]
    assert "Run 12: " in page.text
    assert "12 runs: the first 4 and the last 4 have plots of their own." in page.text


def test_captions_tell_what_the_timeline_holds(tmp_path: Path) -> None:
    timeline = Timeline(
        wait_seconds=(2.0, *[0.01] * 9, 0.91), compute_seconds=(3.0, *[0.09] * 10), ready=(0, 0, *[1] * 9)
    )
    page, _ = write(tmp_path, None, [make_run("u, numpy", 9.0, 11, timeline=timeline, device="xla-cpu")])
    told, waits, ready = page.captions[-3:]
    assert told.startswith("11 steps. Wait 52.6 %, compute 47.4 %. The first step is left out: it took 5 s, 2 s of it")
    assert told.endswith("Cut off at the top: 1, the highest 1 s.")
    assert waits.startswith("10 waits, the first step's left out: half of them were at most 10 ms, 95 % at most ")
    assert "the longest 910 ms." in waits
    assert ready == "On average 0.8 batches were ready when a step asked for one; at 18.2 % of the steps none was."


@pytest.mark.parametrize(
    "timeline",
    [
        Timeline(wait_seconds=(0.0,)),
        Timeline(wait_seconds=(0.0, 0.0, 0.0), compute_seconds=(0.0, 0.0, 0.0), ready=(0, 0, 0)),
        Timeline(wait_seconds=(1.0, 5e-9, 1e3), ready=(1, 1)),
        Timeline(wait_seconds=(float("nan"), -1.0, 2.0), sync_seconds=(1.0, 1.0, float("inf"))),
        Timeline(wait_seconds=(float("nan"),)),
    ],
)
def test_odd_timelines_are_drawn_or_left_out(timeline: Timeline, tmp_path: Path) -> None:
    page, _ = write(tmp_path, None, [make_run("u, numpy", 9.0, 3, timeline=timeline)])
    assert page.tags["svg"] >= 2
    assert not re.search(r"\bnan\b|\binf\b", " ".join(value for _, name, value in page.attributes if name == "d"))


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=400), st.integers(1, 120))
def test_bins_take_every_step_once(values: list[float], most: int) -> None:
    from tpufeed.diagnosis.pages.stepplots import make_bins

    bins = make_bins(len(values), most)
    sizes = np.diff(bins.edges)
    assert len(sizes) == min(most, len(values))
    assert sizes.sum() == len(values)
    assert sizes.max() - sizes.min() <= 1
    assert float((bins.mean(np.asarray(values)) * sizes).sum()) == pytest.approx(sum(values), abs=1e-6)


def test_bands_are_those_of_the_model() -> None:
    from tpufeed.diagnosis.pages.rateplots import _needs

    diagnosis = make_diagnosis()
    facts = {name: getattr(diagnosis, name) for name in diagnosis.__dataclass_fields__}
    needs = _needs(type(diagnosis)(**facts | {"needed": (2_050.0, 3_750.0)}))
    assert needs["v3-8"] == (2_050.0, 3_750.0)
    assert needs["v2-8"] == pytest.approx((750.0, 1_372.0))
    assert _needs(type(diagnosis)(**facts | {"tpu": "v9-1"}))["v9-1"] == diagnosis.needed


def test_the_same_bytes_whatever_the_users_settings_which_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    write(tmp_path, make_diagnosis(), make_runs(40))
    before = (tmp_path / "out.html").read_bytes()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # whoever imported it would fail
    with matplotlib.rc_context({"text.usetex": True, "svg.fonttype": "path", "font.size": 30, "axes.grid": True}):
        settings = matplotlib.rcParams.copy()
        write(tmp_path, make_diagnosis(), make_runs(40))
        assert matplotlib.rcParams.copy() == settings
    assert (tmp_path / "out.html").read_bytes() == before


def test_paths_that_cannot_be_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "README.md").write_text("# Mine\n")
    for name, said in (
        ("out.htm", "ends in .html"),
        ("none/out.html", "there is no folder"),
        ("folder.html", "is a folder"),
        ("README.html", "its summary would replace"),
    ):
        for refuse in (check_report_path, lambda path: write_report(path, make_diagnosis(), [])):
            with pytest.raises(OptionError, match=said):
                refuse(tmp_path / name)
    with pytest.raises(OptionError, match="nothing to report"):
        write_report(tmp_path / "out.html", None, [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "folder.html"]


def test_an_earlier_report_is_replaced_and_one_that_fails_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, make_diagnosis(), [])
    write_report(str(tmp_path / "out.html"), None, make_runs(5))
    assert "EMULATED tpu-v3-8-high idles" in (tmp_path / "out.md").read_text().splitlines()[2]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    made, real = [], tempfile.NamedTemporaryFile

    def fail_at_the_second(**how: Any) -> Any:
        made.append(how)
        if len(made) == 2:
            raise OSError(28, "No space left on device")
        return real(**how)

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", fail_at_the_second)
    with pytest.raises(StoreError, match=r"out\.md: No space left on device"):
        write_report(tmp_path / "out.html", make_diagnosis(), [])
    assert len(made) == 2
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be_written_to_is_a_store_error() -> None:
    with pytest.raises(StoreError, match=r"^/proc/out\.html: "):
        write_report("/proc/out.html", make_diagnosis(), [])


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for refuse in (check_report_path, lambda path: write_report(path, make_diagnosis(), [])):
        with pytest.raises(MissingExtraError, match=r"tpufeed\[report\]"):
            refuse(tmp_path / "out.html")
