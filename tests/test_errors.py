"""The error tree: what its docstring draws, and that errors survive the way out of a worker process."""

import copy
import json
import pickle
import re
from importlib import metadata
from pathlib import Path

import pytest

from tpufeed import errors
from tpufeed.errors import ImageError, MissingExtraError, TpufeedError, UsageError, install_command

ALL = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, TpufeedError)]


def made(kind):
    if kind is ImageError:
        return kind("truncated", "the file ends early")
    return kind("gcsfs", "gcs") if kind is MissingExtraError else kind("a message")


@pytest.mark.parametrize("kind", ALL)
def test_errors_survive_pickling(kind):
    error = made(kind)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert again.__dict__ == error.__dict__


def test_the_tree_is_the_one_that_is_drawn():
    drawn, above = {}, {}
    for line in errors.__doc__.splitlines():
        match = re.match(r"([| +-]*)(\w+Error)(?: \((\w+)\))?", line)
        if match:
            depth = len(match[1]) // 4
            above[depth] = match[2]
            drawn[match[2]] = (above.get(depth - 1), match[3])
    assert set(drawn) == {kind.__name__ for kind in ALL}
    for kind in ALL:
        parent, builtin = drawn[kind.__name__]
        bases = [base.__name__ for base in kind.__bases__]
        assert bases == [name for name in (parent, builtin) if name] or kind is TpufeedError


def test_exit_codes():
    assert {kind.exit_code for kind in ALL if issubclass(kind, UsageError)} == {2}
    assert {kind.exit_code for kind in ALL if not issubclass(kind, UsageError)} == {1}


def test_a_missing_extra_says_what_to_install():
    assert str(MissingExtraError("gcsfs", "gcs")) == f"gcsfs is not installed: {install_command('gcs')}"


def test_the_command_that_installs_names_the_wheel_or_the_clone(tmp_path, monkeypatch):
    """As pip and uv record them; without a record tpufeed came from an index, or lies on the path of imports."""
    info = tmp_path / "site/tpufeed-0.1.0.dist-info"
    wheel, clone = tmp_path / "my wheels/tpufeed-0.1.0.whl", tmp_path / "clone"
    for folder in (info, wheel.parent, clone):
        folder.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: tpufeed\nVersion: 0.1.0\n")
    (clone / "pyproject.toml").touch()
    monkeypatch.syspath_prepend(str(info.parent))

    def recorded(url, **kind):
        (info / "direct_url.json").write_text(json.dumps({"url": url, **kind}))
        return install_command("gcs")

    assert recorded(wheel.as_uri(), archive_info={}) == "pip install 'tpufeed[gcs]'"  # it is gone
    wheel.touch()
    assert recorded(wheel.as_uri(), archive_info={}) == f"pip install '{wheel}[gcs]'"
    assert install_command() == f"pip install '{wheel}'"
    assert recorded(clone.as_uri(), dir_info={}) == f"pip install '{clone}[gcs]'"
    assert recorded(clone.as_uri(), dir_info={"editable": True}) == f"pip install -e '{clone}[gcs]'"
    assert recorded("https://host/tpufeed.git", vcs_info={"vcs": "git"}) == "pip install 'tpufeed[gcs]'"
    (info / "direct_url.json").unlink()
    assert install_command("gcs") == "pip install 'tpufeed[gcs]'"
    assert install_command() == "pip install tpufeed"


def test_a_clone_that_is_not_installed_is_named(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    root = Path(errors.__file__).parents[1]
    if (root / "pyproject.toml").is_file():
        assert install_command("gcs") == f"pip install -e '{root}[gcs]'"
    else:
        assert install_command("gcs") == "pip install 'tpufeed[gcs]'"
