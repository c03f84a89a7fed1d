"""Class 1: what a network and a service do to requests is waited out; beyond the deadline the error names the object.

`tests/storage/test_gcs_transfers.py` strikes each call of the store; here it is whole commands and loaders.
"""

import json
import re
import time

import pytest

import tpufeed
from tests.faults.remote import (
    HURRY,
    QUICK,
    RULES,
    WAKEFUL,
    WARM,
    be,
    epochs_of,
    met,
    names_of,
    objects,
    pairs,
    until_error,
)
from tpufeed import cache
from tpufeed.errors import DatasetUnreadableError, UnavailableError

SHARD = {"shard_bytes": "30KB", "workers": 1}
# One that is refused, one that breaks off, one that is lost. The loader below and the tests of the store meet all.
few_rules = pytest.mark.parametrize("rule", [RULES[name] for name in ("503", "reset in mid-body", "reset after")])


def arm(server, rule, places):
    """The rule at each place (operation, pattern of names)."""
    for operation, name in places:
        server.fault(operation=operation, name=name, **rule)


def are_all_met(server, places):
    """Whether a fault has fired at each place; a stall is logged when it is over."""
    deadline = time.monotonic() + 10
    while not all(any(r.fault for r in server.requests(operation=each, name=name)) for each, name in places):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.all
def test_what_is_kept_is_what_a_local_build_makes(server, kept, dataset_url, cache_url, bytes_of):
    assert objects(server, "kept/dataset") == bytes_of(dataset_url)
    assert objects(server, "kept/cache") == bytes_of(cache_url)


@pytest.mark.first_cases(1)
@few_rules
def test_shard_ends_with_the_same_bytes(rule, server, kept, patience):
    patience(QUICK)
    places = [("list", ""), ("stat", "*plan.jsonl"), ("read", "*.jpg"), ("read", "*/reports/*")]
    places += [("write", f"d/*{name}") for name in ("plan.jsonl", ".tfrecord", "000003.json", "manifest.json")]
    arm(server, rule, places)
    result = tpufeed.shard(f"{kept}/photos", "gs://bucket/d", **SHARD)
    assert are_all_met(server, places)
    assert objects(server, "d") == objects(server, "kept/dataset")
    assert names_of(server, "d") == names_of(server, "kept/dataset")
    assert result.manifest.rejects == {}


def test_warmup_ends_with_the_same_bytes(server, kept, patience):
    patience(QUICK)
    places = [("read", "*dataset/manifest.json"), ("read", "*dataset/*.npy"), ("read", "*dataset/*.tfrecord")]
    places += [("write", f"c/{name}") for name in ("*-v1-*.tfrecord", "*/000001.json", "manifest.json")]
    arm(server, RULES["reset after"], places)
    cache.warmup(f"{kept}/dataset", "gs://bucket/c", **WARM)
    assert are_all_met(server, places)
    assert objects(server, "c") == objects(server, "kept/cache")
    assert names_of(server, "c") == names_of(server, "kept/cache")


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("copied", "rule"),
    [(True, RULES[name]) for name in ("503", "reset in mid-body", "stall")] + [(False, RULES["reset in mid-body"])],
    ids=lambda value: {True: "copied", False: "ranges"}.get(value) if isinstance(value, bool) else value["action"],
)
def test_a_loader_gives_the_same_samples(copied, rule, server, kept, cache_url, tmp_path):
    be(WAKEFUL if rule["action"] == "stall" else QUICK)  # until the test ends
    expected = epochs_of(cache_url, 2)
    places = [("read", "*/manifest.json"), ("read", "*.tfrecord"), ("read", "*.npy")]
    places += [("stat", "*.tfrecord")] if copied else []
    arm(server, rule, places)
    options = {"local_dir": tmp_path} if copied else {"local_bytes": 0}
    assert epochs_of(f"{kept}/cache", 2, **options) == expected
    assert are_all_met(server, places)


@pytest.mark.all
def test_the_command_with_two_workers_ends_with_the_same_bytes(server, kept, real_command):
    """In processes of its own, each of which has a connection that is reset and a server that is too busy."""
    server.fault("status", operation="write", name="d/*", status=429, retry_after=0.1, calls=(1, 3, 5, 7))
    server.fault("reset_midway", operation="read", name="*.jpg", calls=(2, 20))
    done = real_command("shard", f"{kept}/photos", "gs://bucket/d", "--shard-size", "30KB", "--workers", 2)
    said = done.communicate()
    assert done.returncode == 0, said
    assert len(met(server, "status")) == 4
    assert len(met(server, "reset_midway")) == 2
    assert objects(server, "d") == objects(server, "kept/dataset")


BEYOND = {
    "source's listing": ("list", "*photos*", "gs://bucket/kept/photos", set()),
    "shard": ("write", "d/*.tfrecord", r"gs://bucket/d/train-00000-of-00008\.tfrecord", {"_tpufeed/plan.jsonl"}),
    "manifest": ("write", "d/manifest.json", "gs://bucket/d/manifest.json", None),
}


@pytest.mark.all
@pytest.mark.parametrize("moment", BEYOND)
def test_beyond_the_deadline_shard_names_the_object_and_goes_on_later(moment, server, kept, command, patience):
    operation, name, url, left = BEYOND[moment]
    words = ["shard", f"{kept}/photos", "gs://bucket/d", "--shard-size", "30KB", "--workers", 1]
    where = {"path": name} if operation == "list" else {"name": name}
    server.fault("status", operation=operation, calls=None, message="no luck today", **where)
    patience(HURRY)
    done = command(*words)
    assert done.exit_code == 1
    assert len(met(server)) > 1
    *before, line = done.stderr.splitlines()
    assert all(each.startswith("warning: ") for each in before), before
    assert re.search(rf"^error: .*{url}/?: gave up after \d+ tries .*no luck today", line)
    whole = names_of(server, "kept/dataset")
    assert names_of(server, "d") == (whole - {"manifest.json"} if left is None else left)
    assert objects(server, "d").items() <= objects(server, "kept/dataset").items()
    server.clear_faults()
    patience(QUICK)
    done = command(*words)
    assert done.exit_code == 0, done.output
    assert objects(server, "d") == objects(server, "kept/dataset")
    assert names_of(server, "d") == whole


@pytest.mark.all
def test_beyond_the_deadline_warmup_names_the_object_and_goes_on_later(server, kept, command, patience):
    words = ["cache", "warmup", f"{kept}/dataset", "gs://bucket/c", "--size", 32, "--variants", 2]
    words += ["--shard-size", "40KB", "--workers", 1]
    server.fault("reset", operation="write", name="c/train-v1-00001-of-00003.tfrecord", calls=None)
    patience(HURRY)
    done = command(*words)
    assert done.exit_code == 1
    victim = met(server)[0].name
    assert f"gs://bucket/{victim}: gave up after" in done.stderr
    assert "manifest.json" not in names_of(server, "c")
    assert objects(server, "c").items() <= objects(server, "kept/cache").items()
    server.clear_faults()
    patience(QUICK)
    done = command(*words)
    assert done.exit_code == 0, done.output
    assert objects(server, "c") == objects(server, "kept/cache")
    assert names_of(server, "c") == names_of(server, "kept/cache")


@pytest.mark.parametrize("copied", [True, False], ids=["copied", "ranges"])
def test_beyond_the_deadline_a_loader_names_the_shard(copied, server, kept, cache_url, patience, tmp_path):
    """After the batches before it, and in the next epoch it reads on."""
    url, name = f"{kept}/cache", "train-v0-00001-of-00003.tfrecord"
    options = {"local_dir": tmp_path} if copied else {"local_bytes": 0}
    options |= {"columns": ["sample", "image"], "batch_size": 4, "shuffle": False, "lanes": 1, "prefetch": 1}
    (expected,) = epochs_of(url, **{**options, "local_bytes": 0})
    server.fault("status", name=f"*/{name}", calls=None)
    patience(HURRY)
    with tpufeed.Loader(url, **options) as loader:
        found, message = until_error(loader, UnavailableError)
        assert re.search(rf"{url}/{name}: gave up after", message)
        assert found == expected[:3]  # the first shard has 13 records
        server.clear_faults()
        loader.set_epoch(0)
        assert [pairs(*batch) for batch in loader] == expected
    assert not list(tmp_path.glob("*/*.part"))


@pytest.mark.parametrize("status", [503, 403], ids=["outage", "access"])
def test_verify_does_not_call_a_dataset_damaged_that_it_cannot_read(status, server, kept, command, patience):
    server.fault("status", name="*/cache/train-v*", calls=None, status=status)
    patience(HURRY)
    done = command("verify", f"{kept}/cache")
    files = {name for name in names_of(server, "kept/cache") if name.startswith("train-v")}
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: {kept}/cache: {len(files)} files cannot be read. ")
    heading, *lines = done.stdout.splitlines()
    assert (heading, {line.partition(":")[0] for line in lines}) == ("cannot be read:", files)
    facts = json.loads(command("verify", f"{kept}/cache", "--json").stdout)
    assert (facts["sound"], facts["damages"], {each["file"] for each in facts["unreadable"]}) == (None, [], files)
    with pytest.raises(DatasetUnreadableError, match=f"{len(files)} files cannot be read"):
        tpufeed.verify(f"{kept}/cache")
    assert met(server)


def test_verify_tells_damage_and_an_outage_apart(server, kept, command, patience):
    for name in names_of(server, "kept/cache"):
        server.put("bucket", f"c/{name}", server.get("bucket", f"kept/cache/{name}"))
    damaged, unread = "train-v0-00000-of-00003.tfrecord", "train-v0-00001-of-00003.tfrecord"
    data = bytearray(server.get("bucket", f"c/{damaged}"))
    data[2000] ^= 1
    server.put("bucket", f"c/{damaged}", bytes(data))
    server.fault("status", operation="read", name=f"c/{unread}", calls=None)
    patience(HURRY)
    facts = json.loads(command("verify", "gs://bucket/c", "--json").stdout)
    assert facts["sound"] is False
    assert [damage["shard"] for damage in facts["damages"]] == [damaged]
    assert [each["file"] for each in facts["unreadable"]] == [unread]
    assert met(server)
    done = command("verify", "gs://bucket/c")
    assert "is damaged: 1 damage in 1 file; 1 file cannot be read besides. " in done.stderr


@pytest.mark.parametrize("kind", ["tar", "csv"])
def test_beyond_the_deadline_no_source_is_called_unreadable(kind, server, kept, patience, command):
    """Nor is a row of a table: nothing is known of its file."""
    photo = next(name for name in server.names("bucket") if name.startswith("kept/photos/"))
    server.put("bucket", "source/t.csv", f"path\n../{photo}\n".encode())
    server.put("bucket", "source/t.tar", bytes(10240))
    name = "source/t.tar" if kind == "tar" else photo
    server.fault("status", operation="*", name=name, calls=None)
    patience(HURRY)
    with pytest.raises(UnavailableError, match=f"{name}: gave up after"):
        tpufeed.shard(f"gs://bucket/source/t.{kind}", "gs://bucket/d", workers=1)
    assert met(server)
    assert names_of(server, "d") == set()
