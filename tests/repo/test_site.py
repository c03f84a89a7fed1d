"""The site of docs/: built without a warning, whole, with a place for each public name, and nothing from elsewhere."""

import ast
import html
import importlib.util
import json
import logging
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

import tpufeed
from benchmarks.entry import command_of
from tpufeed import cache, errors, images

pytest.importorskip("mkdocs")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REPOSITORY = "https://github.com/tpufeed/tpufeed"


@dataclass(frozen=True)
class Built:
    """What the project's own script made, for which any warning is an error."""

    folder: Path
    status: int
    output: str


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("site")
    command = [ROOT / "scripts/docs", "--site-dir", folder]
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, timeout=240)
    return Built(folder, done.returncode, done.stdout + done.stderr)


@pytest.fixture
def site(built: Built) -> Path:
    return built.folder


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "scripts/docs_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def html_of(site: Path, page: str) -> str:
    """The page of a Markdown file."""
    name = page.removesuffix(".md").removesuffix("index")
    return (site / name / "index.html").read_text()


def test_the_site_is_built_without_a_warning(built: Built) -> None:
    assert built.status == 0, built.output
    assert "WARNING" not in built.output


def test_every_page_is_there_and_has_a_place_in_the_navigation(site: Path) -> None:
    pages = [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))]
    listed = set(re.findall(r"[\w/-]+\.md", str(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])))
    assert {page for page in pages if not re.match("decisions/2", page)} == listed
    for page in pages:
        assert "<h1" in html_of(site, page), page


def test_the_list_of_decisions_has_them_all() -> None:
    listed = re.findall(r"^\| ([\d-]+) \| \[.+\]\((.+)\) \|$", (DOCS / "decisions/index.md").read_text(), re.MULTILINE)
    assert [name for _, name in listed] == sorted(path.name for path in DOCS.glob("decisions/2*.md"))
    assert all(name.startswith(date) for date, name in listed)


def test_each_public_name_has_a_place_in_the_reference(site: Path) -> None:
    reference = "".join(path.read_text() for path in site.glob("api/**/*.html"))
    places = set(re.findall(r'\bid="([\w.]+)"', reference))
    errors_of = [name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")]
    names = [
        *(f"tpufeed.{name}" for name in tpufeed.__all__),
        *(f"tpufeed.cache.{name}" for name in cache.__all__),
        *(f"tpufeed.images.{name}" for name in images.__all__),
        *(f"tpufeed.errors.{name}" for name in errors_of),
    ]
    assert len(names) > 60
    assert [name for name in names if name not in places] == []
    index = html_of(site, "api/index.md")
    rooms = ("__version__", "cache", "errors", "images")
    assert [name for name in tpufeed.__all__ if f"#tpufeed.{name}" not in index and name not in rooms] == []


def fields_of(name: str, sources: list[str]) -> list[str]:
    """The public fields of a dataclass, or of another struct; of no import, as some want a framework."""
    (module,) = (source for source in sources if re.search(rf"^class {name}\b", source, re.MULTILINE))
    made = next(one for one in ast.parse(module).body if isinstance(one, ast.ClassDef) and one.name == name)
    if not re.search("dataclass|Struct", " ".join(map(ast.unparse, [*made.decorator_list, *made.bases]))):
        return []
    fields = (line for line in made.body if isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line))
    return [name for name in (ast.unparse(field.target) for field in fields) if not name.startswith("_")]


def test_each_option_and_field_is_explained(site: Path) -> None:
    reference = "".join(path.read_text() for path in site.glob("api/**/*.html"))
    sources = [path.read_text() for path in (ROOT / "tpufeed").rglob("*.py")]
    entries = re.findall(
        r"^::: [\w.]*?([A-Z]\w+)$", "".join(p.read_text() for p in DOCS.glob("api/*.md")), re.MULTILINE
    )
    names = [f"{entry}.{field}" for entry in entries for field in fields_of(entry, sources)]
    assert {"LoaderStats.batches", "DeviceStats.host", "Manifest.splits"} < set(names)
    assert [name for name in names if f'<td id="{name}">' not in reference] == []


def test_a_reader_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=\"?([^\" >]+)", page.read_text())
        assert [url for url in loaded if re.match("(https?:)?//", url)] == [], page
        assert "data-md-component=source" not in page.read_text()
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet
    assert (site / "search/search_index.json").stat().st_size > 100_000


def test_pictures_are_on_the_site(site: Path) -> None:
    for page, picture in (
        ("index.md", "plots/idle.svg"),
        ("index.md", "pictures/pipeline.svg"),
        ("order.md", "order.svg"),
        ("order.md", "pictures/lanes.svg"),
        ("scaleout.md", "scale.svg"),
    ):
        assert re.search(rf'<img [^>]*src="(?:\.\./)?{picture}"', html_of(site, page)), page
        assert (site / picture).is_file()


def test_no_line_of_code_is_cut(site: Path) -> None:
    sheet = (site / "site.css").read_text()
    (rule,) = re.findall(r"^\.md-typeset pre > code \{(.*)\}$", sheet, re.MULTILINE)
    assert "white-space: pre-wrap" in rule
    for page in site.rglob("*.html"):
        assert re.search(r'<link rel="stylesheet" href="[^"]*\bsite\.css"', page.read_text()), page


COLUMN_PX, LEAST_PX = 368, 9.0  # the column of text on a phone of 400 pixels


@pytest.mark.parametrize(
    "picture", [*DOCS.glob("*.svg"), *DOCS.glob("pictures/*.svg"), *(ROOT / "benchmarks/plots").glob("*.svg")], ids=str
)
def test_a_picture_can_be_read_on_a_phone_and_on_a_dark_page(picture: Path) -> None:
    text = picture.read_text()
    width, unit = re.findall(r'<svg [^>]*\bwidth="([\d.]+)(pt)?"', text)[0]
    view = float(re.findall(r'viewBox="0 0 ([\d.]+)', text)[0])
    wide = min(COLUMN_PX, float(width) * (4 / 3 if unit else 1))
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: (?:\d+ )?([\d.]+)px", text)]
    assert sizes
    assert min(sizes) * wide / view > LEAST_PX
    dark = text.partition("@media (prefers-color-scheme: dark)")[2]
    assert dark
    # All text that has a colour of its own has another one by night, but for white on a bar.
    own = {found[1] for found in re.finditer(r'<text [^>]*style="[^"]*?fill: (#\w+)', text)}
    assert all(colour == "#ffffff" or colour in dark for colour in own)


def test_pictures_follow_the_button_of_the_page() -> None:
    """Browsers take the colours of a picture from `color-scheme` around it, which the theme's sheets set."""
    theme = Path(importlib.util.find_spec("material").origin).parent  # type: ignore[union-attr, arg-type]
    sheets = "".join(path.read_text() for path in theme.rglob("palette*.css"))
    assert re.search(r"slate\]?[^{}]*\{[^}]*color-scheme:dark", sheets)


def lead(hooks: ModuleType, page: str, markdown: str) -> str:
    given = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    led: str = hooks.on_page_markdown(markdown, page=given, config={"extra": {"repository": REPOSITORY}})
    return led


def test_links_that_leave_docs_go_to_the_repository(hooks: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    for page, markdown, expected in (
        ("shard.md", "[a](../benchmarks/README.md#terms)", f"[a]({REPOSITORY}/blob/main/benchmarks/README.md#terms)"),
        ("api/index.md", "[a](../../tests/)", f"[a]({REPOSITORY}/tree/main/tests)"),
        ("jax.md", "[a](../examples/jax_flowers.py)", f"[a]({REPOSITORY}/blob/main/examples/jax_flowers.py)"),
        ("api/index.md", "![a](../../benchmarks/plots/idle.svg)", "![a](../plots/idle.svg)"),
        (
            "shard.md",
            "[a](cache.md#x), [b](#c), [d](https://x.org/e)",
            "[a](cache.md#x), [b](#c), [d](https://x.org/e)",
        ),
    ):
        assert lead(hooks, page, markdown) == expected
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        lead(hooks, "shard.md", "[a](../benchmarks/nowhere.md)")
    assert "shard.md: there is no benchmarks/nowhere.md" in caplog.text


def test_the_commands_of_the_first_page_are_those_that_the_readme_is_tested_by() -> None:
    readme = (ROOT / "README.md").read_text().splitlines()
    blocks = re.findall(r"```bash\n(.*?)```", (DOCS / "index.md").read_text(), re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) == 2
    assert [line for line in commands if line not in readme] == []


STAGES = {
    "machine": {"cpu": "A processor", "cores": 2, "date": "2026-11-22"},
    "about": {"tpu": "v3-8"},
    "rows": [
        {
            "dataset": "full JPEGs",
            "needed": [4100, 7500],
            "binding": "decoding",
            "idle_percent": [79.1, 62.0],
            "stages": {
                "reading": {"median": 42000.0, "images_per_second": [41000.0, 42000.0, 43000.0]},
                "decoding": {"median": 1810.0, "images_per_second": [1800.0, 1810.0, 1830.0]},
            },
        }
    ],
}


def test_pictures_show_what_the_results_say(tmp_path: Path) -> None:
    """Their words and figures: outlines change with versions of matplotlib, text stays text."""
    made_up, drawn_here = tmp_path / "results", tmp_path / "drawn"
    made_up.mkdir()
    drawn_here.mkdir()
    (made_up / "stages.json").write_text(json.dumps(STAGES))
    for drawing in (["--out", drawn_here], ["stages", "--results", made_up, "--out", made_up]):
        done = subprocess.run(command_of("plot", *drawing), check=False, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    kept = {path.name: path for path in [*(ROOT / "benchmarks/plots").glob("*.svg"), *DOCS.glob("*.svg")]}
    drawn = {path.name: path for path in drawn_here.iterdir()}
    assert set(kept) == set(drawn), "`run.py plot` draws them from benchmarks/results/"
    for name, path in drawn.items():
        assert words_of(path) == words_of(kept[name]), f"draw {name} again"
    stages = words_of(made_up / "stages.svg")
    assert {"full JPEGs: decoding binds, 62 to 79 % idle predicted", " 1,810", " 42,000"} <= set(stages)


def words_of(picture: Path) -> list[str]:
    return [html.unescape(text) for text in re.findall(r"<(?:text|tspan)[^>]*>([^<]+)<", picture.read_text())]
