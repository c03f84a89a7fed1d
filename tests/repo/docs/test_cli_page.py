"""The examples of each command's help parse and the cheap ones run; docs/cli.md names each command and variable."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.conftest import make_photos
from tests.repo.docs.pages import commands, ran, run
from tpufeed.cli.app import app

RUNS = {"cli.md": ""}

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/cli.md"
CHEAP = (
    *("shard photos", "shard flowers.csv", "info flowers", "verify flowers"),
    *("show flowers", "card flowers", "cache warmup flowers"),
)


def all_commands() -> dict[str, Any]:
    """Each command's context by name: `cache warmup`."""
    root: Any = typer.main.get_command(app)
    found, groups = {}, [("", root, root.context_class(root, info_name="tpufeed"))]
    while groups:
        prefix, group, context = groups.pop(0)
        for name, command in group.commands.items():
            below = context.command.context_class(command, info_name=name, parent=context)
            if hasattr(command, "commands"):
                groups.append((f"{prefix}{name} ", command, below))
            else:
                found[prefix + name] = below
    return found


def examples_of(context: Any) -> list[str]:
    """The command lines in a command's help."""
    examples = context.command.help.partition("Examples:")[2]
    return [line.strip() for line in examples.splitlines() if line.strip()]


COMMANDS = all_commands()


def test_the_page_names_every_command():
    assert [name for name in COMMANDS if f"`{name}`" not in PAGE.read_text()] == []


def test_every_command_has_two_or_three_examples_that_parse():
    assert set(COMMANDS) == {
        *("shard", "append", "compact", "prune", "cache warmup", "adopt"),
        *("info", "verify", "show", "card", "doctor", "bench"),
    }
    for name, context in COMMANDS.items():
        examples = examples_of(context)
        assert 2 <= len(examples) <= 3, name
        for example in examples:
            words = shlex.split(example)
            assert words[: 1 + len(name.split())] == ["tpufeed", *name.split()]
            parsed = context.command.make_context(name, words[1 + len(name.split()) :], parent=context.parent)
            assert not parsed.args


def test_the_cheap_examples_run(tmp_path, monkeypatch):
    make_photos(tmp_path / "photos", 12, "64x48", 2)
    monkeypatch.chdir(tmp_path)
    rows = [f"{path},{path.parent.name}" for path in sorted(Path("photos").glob("*/*.jpg"))]
    Path("flowers.csv").write_text("\n".join(["path,species", *rows]))
    ran = []
    for context in COMMANDS.values():
        for example in examples_of(context):
            if example.removeprefix("tpufeed ").startswith(CHEAP) and "gs://" not in example:
                words = [*shlex.split(example)[1:], *(["--workers", "1"] if " warmup " in example else [])]
                done = CliRunner().invoke(app, words, prog_name="tpufeed")
                assert done.exit_code == 0, (example, done.output)
                ran.append(example)
    assert len(ran) >= 7
    assert Path("sheet.png").exists()


def test_every_variable_that_the_package_reads_is_told_of():
    told = set(re.findall(r"`([A-Z][A-Z_]+)`", PAGE.read_text()))
    read = set()
    for path in (ROOT / "tpufeed").rglob("*.py"):
        text = path.read_text()
        read |= set(re.findall(r"\bTPUFEED_[A-Z_]+\w", text))
        read |= set(re.findall(r"""environ(?:\.get|\.setdefault|\.pop)?[\[(]"([A-Z_]+)\"""", text))
    inner = {"COMP_WORDS", "COMP_CWORD", "_TPUFEED_COMPLETE"}  # a shell's, when it completes
    assert read - inner <= told


def test_its_commands_install_and_print_the_scripts(tmp_path):
    for command in commands("cli.md"):
        run(["bash", "-c", f"{command}\nexit $?"], tmp_path, HOME=str(tmp_path))
        ran(command)
    assert "tpufeed" in (tmp_path / ".bashrc").read_text()
    assert all((tmp_path / name).stat().st_size > 100 for name in ("tpufeed.bash", "_tpufeed", "tpufeed.fish"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(shell, monkeypatch):
    assert f"_TPUFEED_COMPLETE=source_{shell} tpufeed" in PAGE.read_text()
    done = CliRunner().invoke(app, [], prog_name="tpufeed", env={"_TPUFEED_COMPLETE": f"source_{shell}"})
    assert done.exit_code == 0
    assert f"_TPUFEED_COMPLETE=complete_{shell}" in done.stdout


def test_sections_that_variables_link_to_name_them() -> None:
    rows = re.findall(r"^\| (`[A-Z].*?) \| (.*) \|$", PAGE.read_text().partition("## Environment")[2], re.MULTILINE)
    checked = 0
    for names, about in rows:
        for page, heading in re.findall(r"\]\(([\w-]+\.md)#([\w-]+)\)", about):
            sections = re.split(r"^#+ (.+)$", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
            (section,) = (
                text
                for title, text in zip(sections[1::2], sections[2::2], strict=True)
                if re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") == heading
            )
            assert [name for name in re.findall(r"`([A-Z_]+)`", names) if name not in section] == [], page
            checked += 1
    assert checked > 4
