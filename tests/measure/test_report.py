"""The report: what it says, that it is whole, that texts stay texts, and what it refuses."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.measure.report_example import NASTY, Page, make_diagnosis, make_run, make_runs, make_xla_run, write
from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.measure.report import check_report_path, headline, write_report
from tpufeed.measure.results import Action, BenchRun
from tpufeed.text import format_figure


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return write(tmp_path_factory.mktemp("report"), make_diagnosis(), [*make_runs(50), make_xla_run(150)])


@pytest.mark.all
def test_verdict_actions_figures_and_tables_are_there(full: Page) -> None:
    text = full.text
    assert text.index(make_diagnosis().verdict) < text.index("What to do next") < text.index("Warm a raw cache")
    for part in ("41,300 images a second", "9.2 GB, about 12 minutes", "no TPU on this host"):
        assert part in text
    for part in ("AMD EPYC 9B14", "Page cache warm", "predicted", "recompilations", "Predicted from measurements"):
        assert part in text
    assert full.tags["svg"] == full.tags["figcaption"] == full.tags["desc"] == 2 + 4
    assert {value for tag, name, value in full.attributes if (tag, name) == ("svg", "role")} == {"img"}
    ids = full.values("id")
    labels = [value.split() for value in full.values("aria-labelledby")]
    assert len(labels) == 6
    assert all(set(pair) <= set(ids) for pair in labels)


def test_what_is_emulated_or_predicted_says_so_at_its_picture(full: Page) -> None:
    assert ["EMULATED" in caption for caption in full.captions] == [True] * 5 + [False]  # the last run has a device
    assert ["Hatched bars are predicted" in caption for caption in full.captions] == [True] * 2 + [False] * 4
    assert "(predicted)" in full.text


def test_ids_are_unique_and_all_references_are_to_them(full: Page) -> None:
    ids = full.values("id")
    assert len(ids) == len(set(ids)) > 12
    referred = [value[1:] for name in ("href", "xlink:href") for value in full.values(name) if value.startswith("#")]
    referred += re.findall(r"url\(#([^)]+)\)", " ".join(value for _, _, value in full.attributes))
    assert referred
    assert set(referred) <= set(ids)


def test_nothing_is_loaded_and_nothing_runs(full: Page) -> None:
    assert not full.tags.keys() & {"script", "img", "iframe", "object", "image", "foreignobject"}
    assert full.tags["style"] == 1  # matplotlib's own would be for the whole page
    links = [value for name in ("href", "src", "xlink:href") for value in full.values(name)]
    assert {link for link in links if not link.startswith("#")} == {"data:,"}
    assert not [name for _, name, _ in full.attributes if name.startswith("on")]
    assert "default-src 'none'" in " ".join(full.values("content"))


def test_the_headline_names_what_improved_among_runs_that_have_a_verdict() -> None:
    naive, shards, cache = make_runs(40)
    improved = headline([naive, shards, cache])
    assert improved.startswith("EMULATED: idle falls from ")
    assert f"with {naive.label} to " in improved
    assert f"with {cache.label}: " in improved
    assert headline([naive, cache, shards]) == improved  # it is not the last one that is named
    doubted = make_run(cache.label, 0.4, 40, problems=("it drops samples",))
    assert (
        headline([naive, shards, doubted]) == f"EMULATED: no verdict for the best run, {cache.label}: it drops samples"
    )
    unsure = make_run(naive.label, 88.0, 40, problems=("3 steps were measured",))
    said = headline([unsure, cache])
    assert said.endswith(f"with {cache.label}. {naive.label} has no verdict to compare it with.")
    assert "times" not in said
    assert headline([unsure, doubted]) == "No verdict for any run: 3 steps were measured"
    assert headline([cache, naive]).endswith(f"with {cache.label}; no other run improves on that.")
    assert headline([make_run("a, numpy", 30.0, 40, device="none", idle_percent=None)]).startswith("a, numpy: ")


def test_the_naive_loader_is_no_result_beside_a_loader_as_good() -> None:
    raw, naive = make_run("photos, naive", 88.0, 40), make_run("flowers-224, naive", 0.5, 40)
    ours = make_run("flowers-224, numpy", 1.2, 40)
    assert naive.idle_percent < ours.idle_percent < naive.idle_percent + 1
    assert f" to {ours.idle_percent:.1f} % with {ours.label}" in headline([raw, naive, ours])
    doubted = replace(ours, problems=("it drops samples",))
    assert headline([raw, naive, doubted]).endswith(f"the best run, {ours.label}: it drops samples")
    shards = make_run("flowers, numpy", 1.3, 40)  # as good, and with a verdict
    assert headline([raw, naive, doubted, shards]).count(shards.label) == 1


@pytest.mark.all
def test_the_colour_is_that_of_the_headline_s_run(tmp_path: Path) -> None:
    raw, naive = make_run("photos, naive", 88.0, 40), make_run("flowers-224, naive", 14.0, 40)
    ours = make_run("flowers-224, numpy", 0.4, 40)
    for runs, level in (([raw, ours], "good"), ([raw, naive], "fair"), ([raw], "bad")):
        assert f"card verdict {level}" in write(tmp_path, None, runs).values("class")
    doubted = replace(ours, problems=("it drops samples",))
    assert "card verdict " in write(tmp_path, None, [raw, naive, doubted]).values("class")


@pytest.mark.all
def test_texts_stay_texts(tmp_path: Path) -> None:
    action = Action(do=f"Do {NASTY}", idle_percent=(1, 2), images_per_second=5000.0, cost=NASTY)
    diagnosis = replace(
        make_diagnosis(),
        url=NASTY,
        verdict=NASTY,
        notes=(NASTY,),
        actions=(action,),
        machine={"cpu": NASTY},
        binding=NASTY,
    )
    run = make_run(NASTY, 30.0, 12, url=NASTY, loader=NASTY, verdict=NASTY, problems=(NASTY,))
    page = write(tmp_path, diagnosis, [run, make_run("$a_1$ <b> &amp;", 9.0, 3)])
    assert "script" not in page.tags
    assert "after: $a_1$ <b> &amp; (EMULATED)" in page.text  # in a picture
    assert page.text.count(NASTY.replace("\0", "\ufffd")) >= 10
    assert "p1" not in page.values("id")


def test_what_is_not_known_is_never_nought(tmp_path: Path) -> None:
    run = BenchRun(label="a", url="u", loader="numpy", source="shards", device="none", batch_size=8, steps=1, images=8)
    page = write(tmp_path, None, [run])
    assert page.tags["svg"] == 0
    rows = dict(re.findall(r"<th scope=row>([^<]+)</th><td>([^<]+)</td>", (tmp_path / "out.html").read_text()))
    assert rows["images"] == "8"
    unknown = set(rows) - {"dataset", "loader", "device", "batch", "steps", "images"}
    assert len(unknown) == 17
    assert {rows[name] for name in unknown} == {"n/a"}
    assert format_figure(float("nan")) == format_figure(None) == "n/a"


@pytest.mark.all
def test_a_run_with_problems_has_no_verdict(tmp_path: Path) -> None:
    run = make_run("b, numpy", 1.0, 5, verdict="It is fed.", problems=("It dropped 3 images.", "It slept too long."))
    page = write(tmp_path, None, [run], {"cpu": "EPYC"})
    for part in ("EPYC", "No verdict for any run: It dropped 3 images.", "It slept too long.", ", no verdict"):
        assert part in page.text
    assert run.verdict == ""
    assert "It is fed." not in page.text
    assert "card verdict " in page.values("class")  # of no colour


def test_paths_that_cannot_be_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    for name, said in (
        ("out.htm", "must end in .html"),
        ("none/out.html", "there is no folder"),
        ("folder.html", "is a folder"),
    ):
        for refuse in (check_report_path, lambda path: write_report(path, make_diagnosis(), [])):
            with pytest.raises(OptionError, match=said):
                refuse(tmp_path / name)
    with pytest.raises(OptionError, match="nothing to report"):
        write_report(tmp_path / "out.html", None, [])
    assert [path.name for path in tmp_path.iterdir()] == ["folder.html"]


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for refuse in (check_report_path, lambda path: write_report(path, make_diagnosis(), [])):
        with pytest.raises(MissingExtraError, match=r"\[report\]"):
            refuse(tmp_path / "out.html")


@pytest.mark.all
def test_the_same_bytes_whatever_the_users_settings_in_the_colours_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib

    write(tmp_path, make_diagnosis(), make_runs(20))
    page = (tmp_path / "out.html").read_text()
    figures = page[page.index("<svg") :]
    assert {"--ink", "--wait", "--compute", "--band"} <= set(re.findall(r"var\((--\w+)\)", figures))
    assert not re.findall(r"(?:fill|stroke): #(?!none)\w+", figures)  # or it would vanish by night, or by day
    dark = page[page.index("prefers-color-scheme:dark") :]
    for name in set(re.findall(r"var\((--\w+)\)", page)):
        assert f"{name}:#" in page
        assert f"{name}:#" in dark
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # whoever imported it would fail
    with matplotlib.rc_context({"text.usetex": True, "svg.fonttype": "path", "font.size": 30, "axes.grid": True}):
        settings = matplotlib.rcParams.copy()
        write(tmp_path, make_diagnosis(), make_runs(20))
        assert matplotlib.rcParams.copy() == settings
    assert (tmp_path / "out.html").read_text() == page
