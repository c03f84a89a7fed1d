"""examples/README.md names every example, and its commands have the options that there are; other tests run them."""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
PAGE = (EXAMPLES / "README.md").read_text()
COMMANDS = re.findall(r"python examples/(\w+\.py) (.*?)\"?$", PAGE, re.MULTILINE)


def test_the_page_names_every_example():
    files = {file.name for file in EXAMPLES.iterdir() if file.suffix in (".py", ".ipynb")}
    assert set(re.findall(r"^\| \[(\S+)\]\(\1\)", PAGE, re.MULTILINE)) == files
    command = r"^(?:\w+=\S+ )*python examples/(\w+\.py) .*--data (?:flowers|scenes-tfrecord) "
    on_a_cpu = re.findall(command, PAGE, re.MULTILINE)
    assert set(on_a_cpu) == files - {"tfdata_service.py", "quickstart.ipynb"}


@pytest.mark.parametrize(("name", "arguments"), COMMANDS)
def test_its_commands_have_options_that_there_are(name, arguments):
    program = (EXAMPLES / name).read_text()
    options = re.findall(r"--[a-z-]+", arguments)
    assert options
    assert [option for option in options if f'"{option}"' not in program] == []
