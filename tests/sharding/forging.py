"""Change the plan of a build, as somebody who may write to its destination could."""

import json

from crc32c import crc32c

PLAN = "_tpufeed/plan.jsonl"


def begun(folder):
    """Remove all but the plan of a build; return the folder."""
    for path in [path for path in folder.rglob("*") if path.is_file() and path.name != "plan.jsonl"]:
        path.unlink()
    return folder


def forge(folder, change):
    """Change the JSON of a plan by `change(header, tasks)`, and make its CRC right again."""
    header, *tasks, _ = map(json.loads, (folder / PLAN).read_text().splitlines())
    change(header, tasks)
    data = b"".join(json.dumps(part).encode() + b"\n" for part in (header, *tasks))
    (folder / PLAN).write_bytes(data + b'{"crc32c":%d}\n' % crc32c(data))
