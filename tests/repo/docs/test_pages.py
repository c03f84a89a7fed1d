"""No block of code of README.md, the pages and the examples goes unrun, but for a short list with reasons."""

import ast
import json
import re
import sys
from collections.abc import Iterator

import pytest

from tests.repo.docs.pages import ROOT, UNRUN, blocks, parts, reason_of, text_of

PAGES = [
    "README.md",
    "examples/README.md",
    *(path.relative_to(ROOT / "docs").as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))),
]
GENERAL = [  # of no framework
    *("loaders.md", "resume.md", "mixtures.md", "views.md", "samples.md", "growing.md", "recipes.md", "gcs.md"),
    *("security.md", "troubleshooting.md", "scaleout.md"),
]
LANGUAGES = {"python", "bash", "json", "dockerfile", "text"}
PROGRAMS = (
    "!?tpufeed|!?pip|python3?|torchrun|docker|kubectl|srun|sbatch|scancel|gcloud|gsutil|ray|hf|conda|uv|sudo|apt|export"
    r"|source|curl|wget|git|bash|rm|cd|mkdir|\./\S+"
)


def runs() -> Iterator[tuple[str, str, str]]:
    """`(file, page, pattern)` for each entry of each constant RUNS of the tests."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for found in re.findall(r"^RUNS = (\{.*?\})$", path.read_text(), re.DOTALL | re.MULTILINE):
            yield from ((path.name, page, pattern) for page, pattern in ast.literal_eval(found).items())


@pytest.mark.parametrize("page", PAGES)
def test_every_program_and_command_is_run_by_a_test(page: str) -> None:
    """That the test does run it is what `_whole_pages` of tests/conftest.py asks after the test's file."""
    patterns = [pattern for _, of, pattern in runs() if of == page]
    left = [
        part
        for part in parts(page)
        if not reason_of(page, part) and not any(re.search(pattern, part, re.MULTILINE) for pattern in patterns)
    ]
    assert not left, "name its page in RUNS of the test that runs it; see pages.py"


def test_every_entry_is_needed() -> None:
    for pages, pattern, reason in UNRUN:
        wanted = [page for page in PAGES if re.fullmatch(pages or ".*", page)]
        found = [block for page in wanted for block in (*parts(page), *blocks(page, "text"))]
        matching = [block for block in found if re.search(pattern, block, re.MULTILINE)]
        assert matching, (pages, pattern)
        for name in re.findall(r"test_\w+\.py", reason):
            assert list((ROOT / "tests").rglob(name)), name
    assert {page for _, page, _ in runs()} <= {*PAGES}


@pytest.mark.parametrize("page", PAGES)
def test_programs_ask_for_the_number_of_classes(page: str) -> None:
    for program in blocks(page):
        assert not re.search(r"Dense\(\d+\)|Linear\(\d+, \d+\)|zeros\(\(\d+, \d+\)\)|classes=\d", program)


@pytest.mark.parametrize("page", GENERAL)
def test_programs_of_general_pages_need_numpy_alone(page: str) -> None:
    nodes = [node for program in blocks(page) for node in ast.walk(ast.parse(program))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= {"numpy", "tpufeed", *sys.stdlib_module_names}


@pytest.mark.parametrize("page", PAGES)
def test_what_is_no_program_does_not_look_like_one(page: str) -> None:
    """Blocks of text are output and layouts of folders."""
    fences = re.findall(r"^ *```(.*)\n((?:.*\n)*?) *```$", text_of(page), re.MULTILINE)
    assert 2 * len(fences) == len(re.findall("^ *```", text_of(page), re.MULTILINE))
    for language, code in fences:
        assert language in LANGUAGES, code
        if language == "json":
            json.loads(code)
        if language == "text" and not reason_of(page, code):
            assert not re.search(rf"^({PROGRAMS}) |^(import|from) \w", code, re.MULTILINE), code
            assert not is_python(code), code


def is_python(text: str) -> bool:
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return False
    return any(not isinstance(each, ast.Expr) or isinstance(each.value, ast.Call) for each in body)


def test_programs_are_told_from_output() -> None:
    for program in ("loader = f(1)\n", "fit(model)\n"):
        assert is_python(program)
    for output in ("coco/train2017/  1.jpg ...\n", "label-studio/result.json\n", "{1: 2}\n"):
        assert not is_python(output)
