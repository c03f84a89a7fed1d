"""MkDocs hooks: what docs/ says to a reader on GitHub holds on the site as well.

- A heading's anchor is the one that GitHub makes.
- A link that leaves docs/ goes to the file in the repository; one to a file that is not there is a warning, and so an
  error of the build.
- A picture of benchmarks/plots/ comes along.
- A name of the public face in a sentence, like `to_tf`, leads to its place in the reference. Attributes have
  places of their own there: api/loaders/#LoaderStats.batches.
"""

import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File
from pymdownx.slugs import slugify

ROOT = Path(__file__).parent.parent
PICTURES = "benchmarks/plots"
# Names that are words, options or other packages' as well: they lead to the reference as `tpufeed.shard` only.
WORDS = frozenset({"Dataset", "Preview", "Split", "adopt", "bench", "shard", "verify", "warmup"})

_logger = logging.getLogger("mkdocs.hooks.docs")
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\))")
_ENTRY = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
_CODE = re.compile(r"<code>([\w.]+)(\(\))?</code>")
_OPTION = re.compile(r'<td><code>(<autoref identifier="[\w.]+?\.(\w+)\.(\w+)" optional hover>)')
_TAG = re.compile(r"<(/?)(a|autoref|h[1-6]|pre)\b[^>]*>")


def on_config(config: Any) -> Any:
    """Anchors: Python-Markdown makes `4-kill-9` of what is `4-kill--9` on GitHub."""
    config["mdx_configs"]["toc"]["slugify"] = slugify(case="lower")
    return config


def on_files(files: Any, config: Any) -> Any:
    """Pictures that scripts draw elsewhere."""
    for picture in sorted((ROOT / PICTURES).glob("*.svg")):
        plain = f"plots/{picture.name}"
        files.append(File(plain, str(ROOT / "benchmarks"), config["site_dir"], use_directory_urls=True))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Links that leave docs/."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def lead(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1]))
        if target.startswith("docs/"):
            return match[0]
        if not (ROOT / target).exists():
            _logger.warning("%s: there is no %s, to which %s leads", page.file.src_uri, target, match[1])
        if posixpath.dirname(target) == PICTURES:
            return posixpath.relpath(f"docs/plots/{posixpath.basename(target)}", folder)
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"{config['extra']['repository']}/{kind}/main/{target}{match[2] or ''}"

    return _LINK.sub(lead, markdown)


def on_page_content(html: str, config: Any, **_: Any) -> str:
    """Names of the reference in sentences; headings, links and programs stay as they are."""
    names = _reference(Path(config["docs_dir"]))

    def lead(match: re.Match[str]) -> str:
        place = names.get(match[1])
        return match[0] if place is None else f'<autoref identifier="{place}">{match[0]}</autoref>'

    html = _OPTION.sub(r'<td id="\2.\3"><code>\1', html)
    return "".join(text if within else _CODE.sub(lead, text) for text, within in _pieces(html))


def _pieces(html: str) -> Iterator[tuple[str, bool]]:
    """Runs of a page with whether they lie within a heading, a link or a program."""
    depth = start = 0
    for tag in _TAG.finditer(html):
        yield html[start : tag.start()], depth > 0
        yield tag[0], True
        depth += -1 if tag[1] else 1
        start = tag.end()
    yield html[start:], depth > 0


def _reference(docs: Path) -> dict[str, str]:
    """The place of each name that has one, by its short names and its full one."""
    pages = (page.read_text() for page in sorted(docs.glob("api/*.md")))
    places = [place for page in pages for place in _ENTRY.findall(page) if place != "tpufeed.errors"]
    errors = re.findall(r"^class (\w+)", (ROOT / "tpufeed/errors.py").read_text(), re.MULTILINE)
    places += [f"tpufeed.errors.{name}" for name in errors]
    short = {place.rpartition(".")[2]: place for place in places}
    return {name: place for name, place in short.items() if name not in WORDS} | {place: place for place in places}
