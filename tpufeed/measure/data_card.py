"""Write a data card: a page of Markdown on a dataset, with the YAML head that the Hugging Face hub reads."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import LABEL
from tpufeed.errors import mask_secrets, printable
from tpufeed.text import format_count, format_counts

_MOST_CLASSES = 1000  # that the page lists
_QUOTED = ('"', "\\")
_TASKS = {
    "boxes": "object-detection",
    "mask": "image-segmentation",
    "keypoints": "keypoint-detection",
    "depth": "depth-estimation",
}


def format_card(dataset: Dataset, facts: Mapping[str, Any], lines: Iterable[str], sheet: str) -> str:
    """Return the page.

    Args:
        dataset: the dataset.
        facts: what `tpufeed info --json` prints of it.
        lines: what `tpufeed info` prints below its tables.
        sheet: name of the file of its contact sheet.
    """
    url, splits = mask_secrets(facts["url"]), facts["splits"]
    name = url.rstrip("/").rpartition("/")[2] or url
    images, size = (sum(split[each] for split in splits.values()) for each in ("images", "bytes"))
    taken_as = facts["listed"].kind or facts["options"].get("source", "another dataset")
    total = {"images": images, "shards": sum(split["shards"] for split in splits.values()), "bytes": size}
    rows = [
        (_escape(split), f"{of['images']:,}", f"{of['shards']:,}", f"{of['bytes'] / 1e6:,.1f}")
        for split, of in {**splits, "all": total}.items()
    ]
    # No name can end the block, as each line begins with a topic.
    made = "\n".join(" ".join(line.splitlines()) for line in lines)
    parts = (
        "\n".join(["---", *_iter_head(dataset, name, images, splits), "---"]),
        f"# {_escape(name)}",
        f"{format_count(images, 'image')}, {size / 1e6:,.1f} MB, version {facts['version']}. "
        f"From: {_escape(taken_as)}.",
        "## Splits",
        _table(("split", "images", "shards", "MB"), rows),
        f"Splits: {_escape(facts['listed'].splits or 'those of the source')}.",
        *_iter_classes(dataset, facts, images),
        f"## Samples\n\n![Some samples, with their labels]({quote(sheet)})",
        f"## What it is and how it was made\n\n```text\n{made}\n```",
        f"## How to load it\n\n```python\n{_program(dataset, url)}```",
    )
    return printable("\n\n".join(parts) + "\n").encode("utf-8", "backslashreplace").decode()


def _iter_head(dataset: Dataset, name: str, images: int, splits: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of YAML. The license is for its author to add."""
    yield f"pretty_name: {_quote(name)}"
    yield f"size_categories:\n- {_size_category(images)}"
    kinds = {feature.kind for feature in dataset.manifest.features}
    tasks = [task for kind, task in _TASKS.items() if kind in kinds]
    if dataset.class_names and "boxes" not in kinds:
        tasks.insert(0, "video-classification" if dataset.manifest.pixels.frames else "image-classification")
    if tasks:
        yield "\n".join(["task_categories:", *(f"- {task}" for task in tasks)])
    yield "tags:\n- tpufeed\nviewer: false\ndataset_info:\n  splits:"
    for split, of in splits.items():
        yield f"  - name: {_quote(split)}\n    num_bytes: {of['bytes']}\n    num_examples: {of['images']}"
    yield f"  dataset_size: {sum(of['bytes'] for of in splits.values())}"


def _iter_classes(dataset: Dataset, facts: Mapping[str, Any], images: int) -> Iterator[str]:
    """Yield the parts of the page on classes."""
    classes, splits = facts["classes"], facts["splits"]
    if not classes:
        return
    yield "## Classes"
    rows = [
        (str(number), _escape(name), *(f"{of['class_counts'][number]:,}" for of in splits.values()), f"{count:,}")
        for number, (name, count) in enumerate(classes.items())
    ]
    yield _table(("id", "class", *map(_escape, splits), "all"), rows[:_MOST_CLASSES])
    ends = sorted(classes, key=classes.__getitem__)
    said = {"largest class": ends[-1], "smallest class": ends[0]}
    text = "; ".join(f"{what}: {_escape(name)}, {classes[name]:,}" for what, name in said.items())
    if classes[ends[0]] == classes[ends[-1]]:
        text = f"each class: {classes[ends[0]]:,}"
    if len(rows) > _MOST_CLASSES:
        text = f"... and {len(rows) - _MOST_CLASSES:,} more. {text}"
    without = images - sum(classes.values())
    yield text + (f"; {format_counts({'without a class': without})}." if dataset.manifest.has_unlabelled else ".")


def _program(dataset: Dataset, url: str) -> str:
    manifest = dataset.manifest
    filled = ((name, min(each.records, 32)) for name, each in manifest.splits.items() if each.records)
    split, batch = next(filled, ("train", 32))
    options, imports = f"{_quote(url)}, {_quote(split)}, batch_size={batch}", "import tpufeed\n"
    if manifest.image_size is None:
        imports += "from tpufeed.images import RandomResizedCrop\n"
        options += ", ops=[RandomResizedCrop(224)]"
    columns = "images, labels"
    if not manifest.has_label or any(each.name == LABEL and each.shape != () for each in manifest.features):
        options, columns = f'{options}, columns=["image"]', "images"
    each = f"for {columns} in loader:  # also loader.to_jax(), to_torch(), to_xla(), to_tf(), to_keras()\n"
    return f"{imports}\nloader = tpufeed.Loader({options})\n{each}    print(images.shape)\n    break\n"


def _size_category(images: int) -> str:
    """Return the category of the hub: `1K<n<10K`."""
    if images < 1000:
        return "n<1K"
    names = [f"{size}{unit}" for unit in "KMBT" for size in (1, 10, 100)][:10]
    place = len(str(images)) - 4
    return f"{names[place]}<n<{names[place + 1]}" if place + 1 < len(names) else "n>1T"


def _table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows))


def _escape(text: str) -> str:
    """Return a name as one line of Markdown that means nothing else."""
    return re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", " ".join(text.split()))


def _quote(text: str) -> str:
    r"""Return a string for YAML and Python, of one line: both have `\U`."""
    plain = (each if each.isprintable() and each not in _QUOTED else rf"\U{ord(each):08x}" for each in text)
    return f'"{"".join(plain)}"'
