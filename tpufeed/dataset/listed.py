"""Hold what a listing found and understood of a source: data for plan, manifest and results, and their text."""

from collections.abc import Iterator, Mapping

import msgspec

from tpufeed.dataset.naming import format_endings
from tpufeed.text import format_count

MOST_CLASSES = 8  # that are kept with their counts
DEEP = "deep"  # begins the odd cases of images with more than 8 bits per channel
_NUMBERS = {
    "xyxy": "left, top, right, bottom",
    "xywh": "left, top, width, height",
    "cxcywh": "middle, width, height",
    "voc": "left, top, right, bottom from 1 on",
}


class Listed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a source was taken for: each guess, for a person to see a wrong one before training on it.

    A plan or manifest of another tpufeed may lack some of these fields, or have more.

    Attributes:
        kind: the kind of source, like "folder of images".
        why: what decided the kind.
        labels: where labels come from, empty without labels.
        classes: the first classes, with the number of inputs that have them.
        class_count: number of classes.
        splits: where splits come from.
        columns: types of the further columns, see `schema.further_columns`.
        boxes: the column of boxes.
        box_format: its numbers in the source, as `tpufeed.shard` takes them.
        first_box: its first box, and the input that has it.
        images_from: the folder that names in annotations were taken to be relative to, if they did not say.
        ignored_files: files that are not taken because of their names, counted by their endings (`.txt`).
        named: what the names of taken files say.
        listed_twice: number of inputs that the source names more than once.
        ops: the ops of a cache's splits, if they differ.
        left_out: keys of adopted records without a place in the schema.
        warnings: sentences on what may not be what the user meant, each with the option that changes it.
    """

    kind: str = ""
    why: str = ""
    labels: str = ""
    classes: dict[str, int] = {}
    class_count: int = 0
    splits: str = ""
    columns: dict[str, str] = {}
    boxes: str = ""
    box_format: str = "xyxy"
    first_box: str = ""
    images_from: str = ""
    ignored_files: dict[str, int] = {}
    named: str = "as images are"
    listed_twice: int = 0
    ops: dict[str, str] = {}
    left_out: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def iter_lines(self, sizes: object = None, odd: Mapping[str, int] | None = None) -> Iterator[str]:
        """Yield a line for each topic. The images have these `sizes` and odd cases."""
        if self.kind:
            yield f"taken as: {self.kind}{f' ({self.why})' if self.why else ''}"
            yield f"labels: {self._format_labels() if self.labels else 'none'}"
            yield f"splits: {self.splits or 'none'}"
        for splits, ops in self.ops.items():
            yield f"{splits}: {ops}"
        if self.images_from:
            yield f"image names are relative to: {self.images_from}"
        if self.columns:
            yield f"columns: {', '.join(f'{name} {dtype}' for name, dtype in self.columns.items())}"
        if self.boxes:
            form, _, relative = self.box_format.partition(",")
            first = f"; the first: {self.first_box}" if self.first_box else ""
            unit = "shares of the sides" if relative else "pixels"
            yield f"boxes: {self.boxes}, as {_NUMBERS.get(form, form)} in {unit}{first}"
        if sizes:
            yield f"sizes: {sizes}{_format_depth(odd or {})}"
        flat = (odd or {}).get(DEEP, 0) + (odd or {}).get("bands", 0)
        if flat:
            yield f"pixels: {flat:,} images have more than 8 bits or 3 channels, which --pixels keep would keep"
        if lacking := (odd or {}).get("nodata"):
            images = format_count(lacking, "image has", "images have")
            yield f"nodata: {images} values that their files call no data. --policy nodata=mask masks them"
        if several := (odd or {}).get("animated"):
            images = format_count(several, "image has", "images have")
            yield f"frames: {images} several, of which one is taken. --frames makes clips of them"
        if self.ignored_files:
            count = sum(self.ignored_files.values())
            files = f"{count:,} file{'s' * (count > 1)} not named {self.named}"
            yield f"left out: {files}{format_endings(self.ignored_files)}"
        if self.left_out:
            yield f"features left out: {', '.join(self.left_out)}"
        if self.listed_twice:
            yield f"listed more than once: {self.listed_twice:,} row{'s' * (self.listed_twice > 1)}"

    def _format_labels(self) -> str:
        if not self.class_count:
            return self.labels
        shown = ", ".join(f"{name} {count:,}" for name, count in self.classes.items())
        more = ", ..." if self.class_count > len(self.classes) else ""
        return f"{self.labels}: {self.class_count:,} class{'es' * (self.class_count > 1)}: {shown}{more}"


UNLISTED = Listed()  # of datasets that were made of datasets


def _format_depth(odd: Mapping[str, int]) -> str:
    """Return how many images have more than 8 bits per channel, and how many of these bits they use."""
    cases = [f"{count:,} {case}" for case, count in odd.items() if case.startswith(DEEP)]
    return f"; more than 8 bits per channel: {', '.join(cases)}" if cases else ""
