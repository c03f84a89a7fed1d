"""What the commands print when all is well."""

import errno
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tpufeed
from tpufeed.cli.console import reports_errors
from tpufeed.dataset.reader import open_dataset


def counted(shown):
    """Images by class, from the table that `info` prints."""
    found = re.findall(r"^\W*\d+\W+(astronaut|cat|coffee)\b.*?(\d+)\W*$", shown, re.MULTILINE)
    return {name: int(count) for name, count in found}


def test_info_as_json_says_the_truth(run, dataset_url, cache_url):
    for url in (dataset_url, cache_url):
        dataset = open_dataset(url)
        done = run("info", url, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        facts = json.loads(done.stdout)
        assert facts["url"] == url
        assert facts["content_digest"] == dataset.content_digest
        assert facts["classes"] == {"astronaut": 10, "cat": 10, "coffee": 10}
        assert facts["options"]["command"] == ("shard" if url == dataset_url else "cache warmup")
        assert (facts["cache"] is None) == (url == dataset_url)
        for name, split in dataset.manifest.splits.items():
            shards = [*Path(url).glob(f"{name}-*.tfrecord")]
            assert facts["splits"][name]["images"] == split.records
            assert facts["splits"][name]["class_counts"] == list(split.class_counts)
            assert facts["splits"][name]["shards"] == len(shards)
            sizes = [shard.stat().st_size for shard in shards]
            assert facts["splits"][name]["bytes"] == sum(sizes)
            assert facts["splits"][name]["smallest_shard_bytes"] == min(sizes)
            assert facts["splits"][name]["largest_shard_bytes"] == max(sizes)


def test_info_as_a_table(run, dataset_url, cache_url):
    done = run("info", dataset_url)
    assert (done.returncode, done.stderr) == (0, "")
    for name, split in open_dataset(dataset_url).manifest.splits.items():
        assert re.search(rf"{name} .* {split.records} .* 1 .* {len(split.variants[0].shards)} ", done.stdout)
    assert counted(done.stdout) == {"astronaut": 10, "cat": 10, "coffee": 10}
    assert f"content digest: {open_dataset(dataset_url).content_digest}" in done.stdout
    assert "cache: raw 32x32, 2 variants of RandomResizedCrop, HorizontalFlip" in run("info", cache_url).stdout


def test_info_counts_classes_beside_an_empty_split(run, photo_folder, tmp_path):
    tpufeed.shard(photo_folder, tmp_path / "d", splits="train=0.999999,val=0.000001", workers=1)
    assert counted(run("info", tmp_path / "d").stdout) == {"astronaut": 10, "cat": 10, "coffee": 10}


def test_names_that_a_terminal_might_take_amiss(run, dataset_url, tmp_path):
    """As mark-up, as characters that it does not have, and as bytes that are no character."""
    place = tmp_path / "x[/red][bold]x größe 猫 b\udcffd"
    place.parent.mkdir()
    place.symlink_to(dataset_url)
    done = run("info", place, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert counted(done.stdout)["astronaut"] == 10
    assert str(tmp_path) in run("info", place, "--json").stdout
    assert run("info", place / "no", PYTHONIOENCODING="ascii").returncode == 2


def test_a_class_name_beyond_the_terminals_encoding(run, photo_folder, tmp_path):
    shutil.copytree(photo_folder, tmp_path / "photos")
    (tmp_path / "photos/cat").rename(tmp_path / "photos/größe")
    done = run("shard", tmp_path / "photos", tmp_path / "d-größe", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"d-gr\xf6\xdfe" in done.stdout


def test_a_limit_of_the_system_is_one_line(capsys):
    @reports_errors
    def command(error, log_json=False):
        raise error

    for error, said in (
        (RuntimeError("can't start new thread"), "error: the system has no room for one more thread. Take fewer"),
        (OSError(errno.EMFILE, "Too many open files"), "error: too many files are open, of "),
    ):
        with pytest.raises(SystemExit) as end:
            command(error)
        captured = capsys.readouterr().err
        assert (end.value.code, captured.count("\n")) == (1, 1)
        assert captured.startswith(said)
        assert "`ulimit -" in captured
    with pytest.raises(RuntimeError, match="a bug"):
        command(RuntimeError("a bug"))


def test_errors_that_other_packages_log_are_not_shown():
    """gcsfs logs each request that fails, with its trace, before it raises what we report."""
    program = """
import logging
from tpufeed.cli.console import reports_errors
from tpufeed.errors import StoreError

@reports_errors
def command():
    try:
        1 / 0
    except ZeroDivisionError:
        logging.getLogger("gcsfs").exception("a request failed")
    logging.getLogger("tpufeed.build.commit").warning("replacing it")
    raise StoreError("gs://bucket: no network")

command()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.startswith("warning: replacing it\nerror: gs://bucket: no network\n")
    assert "a request failed" not in done.stderr
