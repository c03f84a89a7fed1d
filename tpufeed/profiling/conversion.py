"""What xprof makes of profiles, asked in a process of its own: `python -m tpufeed.profiling.conversion FOLDER...`.

xprof is native code that takes gigabytes for a large profile, logs to stderr whatever one sets, and takes its process
along when it fails badly. It also leaves its results beside what it reads, whatever `use_saved_result` says: it is
given links in a temporary folder.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpufeed.errors import DamageError, MissingExtraError

# Tables as Google Charts take them: {"cols": [...], "rows": [...], "p": {...}}.
Tables = list[dict[str, Any]]
_TOOLS = ("overview_page", "roofline_model")
_PROFILE, _RESULT = "host.xplane.pb", "tables.json"


def convert(profiles: Sequence[Path]) -> list[Tables]:
    """The tables of xprof's overview page and roofline model for each profile by itself.

    Raises:
        MissingExtraError: xprof is not installed.
        DamageError: xprof cannot read one of the profiles.
    """
    if importlib.util.find_spec("xprof") is None:
        raise MissingExtraError("xprof", "profile")
    with tempfile.TemporaryDirectory(prefix="tpufeed-profile-") as scratch:
        folders = [Path(scratch, str(number)) for number in range(len(profiles))]
        for folder, profile in zip(folders, profiles, strict=True):
            folder.mkdir()
            (folder / _PROFILE).symlink_to(profile.resolve())
        # -P and PYTHONPATH: the same modules as here, never those that happen to lie in the working folder.
        variables = {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path), "TF_CPP_MIN_LOG_LEVEL": "2"}
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, *map(str, folders)],
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        said = done.stderr.decode("utf-8", "replace")
        return [_result(folder, profile, said) for folder, profile in zip(folders, profiles, strict=True)]


def _result(folder: Path, profile: Path, said: str) -> Tables:
    try:
        tables: Tables = json.loads((folder / _RESULT).read_text())
    except FileNotFoundError:
        lines = [line.rpartition("] ")[2].strip() for line in said.splitlines()]
        last = next((line for line in reversed(lines) if line), "it ended without a word")
        last = last.replace(str(folder / _PROFILE), str(profile))
        raise DamageError(f"{profile}: xprof cannot read this profile ({last}); copy it or capture it again") from None
    return tables


def _convert_one(folder: Path) -> None:
    """Leave the tables of the profile in `folder` there. Ends the process if xprof cannot read it: its last word."""
    from xprof.convert import raw_to_tool_data

    tables: Tables = []
    for tool in _TOOLS:
        text, _ = raw_to_tool_data.xspace_to_tool_data([str(folder / _PROFILE)], tool, {"use_saved_result": False})
        if text is None:
            raise SystemExit(1)
        tables += json.loads(text)
    (folder / _RESULT).write_text(json.dumps(tables))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        _convert_one(Path(name))
