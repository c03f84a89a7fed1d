"""`--help`: each option says what it takes, and options that several commands have are the same everywhere."""

import inspect
import re

import pytest
from rich.emoji import Emoji

import tpufeed
from tests.repo.docs.test_cli_page import all_commands
from tpufeed.builds.compact import compact
from tpufeed.cache import warmup
from tpufeed.images.header import MAX_PIXELS
from tpufeed.measure.bench import BenchOptions
from tpufeed.measure.doctor import examine
from tpufeed.sources.options import OPTIONS

COMMANDS = all_commands()


def options_of(context):
    return [option for option in context.command.params if option.param_type_name == "option"]


def test_the_same_flag_takes_the_same_value_everywhere():
    seen = {}
    for context in COMMANDS.values():
        for option in options_of(context):
            seen.setdefault(max(option.opts, key=len), set()).add((option.metavar, option.is_flag, option.multiple))
    assert {flag for flag, kinds in seen.items() if len(kinds) > 1} == set()
    assert all("--json" in {max(option.opts) for option in options_of(context)} for context in COMMANDS.values())


def test_no_help_has_what_rich_makes_a_picture_of():
    for context in COMMANDS.values():
        context.command.get_help(context)
        texts = [context.command.help, *(param.help for param in context.command.get_params(context))]
        assert [text for text in texts if text and Emoji.replace(text) != text] == []
    assert Emoji.replace(":mask:") != ":mask:"


def test_groups_and_version(run):
    for flag in ("--help", "-h"):
        done = run(flag)
        assert done.returncode == 0
        assert {"shard", "adopt", "info", "verify", "show", "doctor", "bench", "cache"} <= set(done.stdout.split())
    assert "warmup" in run("cache", "--help").stdout
    assert re.fullmatch(r"tpufeed \d+\.\d+\.\d+\n", run("--version").stdout)


@pytest.mark.parametrize(
    ("name", "function", "own"),
    [
        ("shard", tpufeed.shard, {"policy", "chosen_bands", "beam", "ray_address", "dry_run", "log_json"}),
        ("append", tpufeed.append, {"beam", "ray_address", "dry_run", "log_json"}),
        ("cache warmup", warmup, {"select", "beam", "ray_address", "dry_run", "log_json"}),
        ("compact", compact, set()),
        ("adopt", tpufeed.adopt, set()),
        ("doctor", examine, {"report"}),
        ("bench", BenchOptions, {"url", "loader", "save", "report"}),
    ],
)
def test_each_flag_is_a_parameter_of_what_the_command_calls(name, function, own):
    grouped = {flat for flat, (owner, _) in OPTIONS.items() if owner} if function is tpufeed.shard else set()
    flags = {option.name for option in COMMANDS[name].command.params} - grouped
    assert flags - set(inspect.signature(function).parameters) == own | {"as_json"}


@pytest.mark.parametrize("name", COMMANDS)
def test_all_flags_have_help(name):
    COMMANDS[name].command.get_help(COMMANDS[name])
    for param in COMMANDS[name].command.get_params(COMMANDS[name]):
        assert re.search(r"\w.*[.)]$", param.help), param.name
        assert not re.search(r"`tpufeed\.|^as |[Dd]efault: ", param.help), param.name


@pytest.mark.parametrize("name", ["shard", "cache warmup", "verify"])
def test_flags_show_no_type_and_limits_show_their_defaults(name, run):
    text = run(*name.split(), "--help").stdout
    flags = [line for line in text.splitlines() if re.search(r"--(help|json|fsync|dry-run)\b", line)]
    assert flags
    assert not re.search("bool", text, re.IGNORECASE)
    assert name != "shard" or f"{MAX_PIXELS:,}" in text


@pytest.mark.parametrize("words", [["warmup"], ["warmup", "a", "b", "--size", "64"], ["warmpu", "--help"]])
def test_a_command_of_a_group_is_named_with_its_group(words, run):
    done = run(*words)
    assert done.returncode == 2
    assert "tpufeed cache warmup" in " ".join(done.stderr.replace("│", " ").split())
    assert "cache" not in run("polish").stderr
