"""How `--help` looks, and that options which several commands have are the same everywhere."""

import re
import shlex

import pytest

from tests.docs.cli_page import all_commands, examples_of
from tpufeed.cli.helptext import panels

COMMANDS = all_commands()


def options_of(context):
    for options in panels(context.command, context).values():
        yield from options


@pytest.mark.parametrize("width", [80, 50, 30])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_keeps_to_the_terminal_and_leaves_nothing_out(name, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    context = COMMANDS[name]
    shown = context.command.get_help(context)
    longest = max(len(word) for word in shown.split())
    assert max(map(len, shown.splitlines())) <= max(width, longest + 8)
    assert "\x1b" not in shown
    for option in options_of(context):
        assert all(re.search(rf"(^| ){flag}[ ,\n]", shown, re.MULTILINE) for flag in option.opts), option.opts
    folded = shown.partition("\nExamples:\n")[2].replace("\\\n", "")
    assert [shlex.split(line) for line in folded.splitlines()] == [shlex.split(line) for line in examples_of(context)]


def test_many_options_stand_in_groups():
    for name, context in COMMANDS.items():
        sizes = {panel: len(options) for panel, options in panels(context.command, context).items()}
        assert max(sizes.values()) <= 10, name
        assert sizes.pop("Options") <= 2, name  # --help
        assert list(sizes), name


def test_every_option_says_what_it_is_and_what_it_takes():
    for context in COMMANDS.values():
        for option in options_of(context):
            assert option.help.endswith((".", ")")), option.opts
            assert option.is_flag or re.fullmatch(r"[A-Z=:,.]+", option.metavar), option.opts


def test_the_same_flag_takes_the_same_value_everywhere():
    two = {"--split", "--image", "--label"}  # a split is made with shares; of records they are features
    seen = {}
    for context in COMMANDS.values():
        for option in options_of(context):
            seen.setdefault(max(option.opts, key=len), set()).add((option.metavar, option.is_flag, option.multiple))
    assert {flag for flag, kinds in seen.items() if len(kinds) > 1} == two
    assert all("--json" in {max(option.opts) for option in options_of(context)} for context in COMMANDS.values())


def test_groups_and_version(run):
    for words in ([], ["--help"], ["-h"]):
        done = run(*words)
        assert done.returncode == (0 if words else 2)
        assert {"shard", "adopt", "info", "verify", "show", "doctor", "bench", "cache"} <= set(
            (done.stdout + done.stderr).split()
        )
    assert "warmup" in run("cache", "--help").stdout
    assert re.fullmatch(r"tpufeed \d+\.\d+\.\d+\n", run("--version").stdout)
