"""Options of `shard`, drawn one by one."""

from tpufeed import Boxes, Images
from tpufeed.sources.options import OPTIONS


def in_groups(options):
    """Return options of `shard` by the names of flags as the function takes them."""
    groups = {"": {}, "boxes": {}, "images": {}}
    for name, value in options.items():
        owner, option = OPTIONS.get(name, ("", None))
        groups[owner][option.name if owner else name] = value
    return groups[""] | {"boxes": Boxes(**groups["boxes"]), "images": Images(**groups["images"])}
