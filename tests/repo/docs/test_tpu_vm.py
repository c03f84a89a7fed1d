"""docs/tpu-vm.md: its tpufeed commands run on a folder, and its gcloud commands agree with one another.

Nothing here can ask Google: a command must parse, use what the page has defined before, and only flags that are known.
"""

import re
import shlex

import pytest

from tests.repo.docs.pages import ROOT, commands, make_photos, run_here, text_of

PAGE = text_of("tpu-vm.md")
COMMANDS = commands("tpu-vm.md")
GCLOUD = [line for line in COMMANDS if line.startswith("gcloud ")]
OURS = [line for line in COMMANDS if line.startswith("tpufeed ")]
# By group and verb, from gcloud's reference (cloud.google.com/sdk/gcloud/reference).
FLAGS = {
    "config set": set(),
    "services enable": set(),
    "compute tpus locations list": set(),
    "compute tpus tpu-vm accelerator-types list": {"zone"},
    "compute tpus tpu-vm versions list": {"zone"},
    "compute tpus tpu-vm create": {"zone", "accelerator-type", "version", "service-account", "scopes", "spot"},
    "compute tpus tpu-vm ssh": {"zone", "worker", "command"},
    "compute tpus tpu-vm scp": {"zone", "worker"},
    "compute tpus tpu-vm delete": {"zone"},
    "compute tpus tpu-vm list": {"zone"},
    "compute tpus queued-resources create": {
        *("node-id", "zone", "accelerator-type", "runtime-version", "service-account", "scopes", "spot"),
    },
    "compute tpus queued-resources describe": {"zone"},
    "compute tpus queued-resources delete": {"zone", "force"},
    "compute tpus queued-resources list": {"zone"},
    "storage buckets create": {"location", "uniform-bucket-level-access", "soft-delete-duration"},
    "storage buckets add-iam-policy-binding": {"member", "role"},
    "storage rm": {"recursive"},
    "iam service-accounts create": {"display-name"},
    "iam service-accounts delete": set(),
}


def test_every_command_is_one_that_is_looked_at():
    exports = [line for line in COMMANDS if line.startswith("export ")]
    assert sorted([*exports, *GCLOUD, *OURS]) == sorted(COMMANDS)
    assert {line.split()[1] for line in OURS} == {"shard", "cache", "verify", "doctor", "bench"}


def test_variables_are_defined_before_they_are_used():
    defined = set()
    for line in COMMANDS:
        if line.startswith("export "):
            name, _, value = shlex.split(line)[1].partition("=")
            assert value, line
            defined.add(name)
        assert set(re.findall(r"\$(\w+)", line)) <= defined, line
    assert defined == set(re.findall(r"\$(\w+)", PAGE))


def test_names_agree():
    names = dict(re.findall(r"^export (\w+)=(.*)$", PAGE, re.MULTILINE))
    assert names["ZONE"].startswith(f"{names['REGION']}-")
    created = next(line for line in GCLOUD if "service-accounts create" in line).split()[4]
    assert names["ACCOUNT"] == f"{created}@{names['PROJECT_ID']}.iam.gserviceaccount.com"
    assert f"`{names['ACCELERATOR_TYPE']}` | `{names['RUNTIME_VERSION']}`" in PAGE
    assert all(name in PAGE for name in re.findall(r"--tpu (\S+)", PAGE))


@pytest.mark.parametrize("line", GCLOUD)
def test_a_gcloud_command_parses_and_has_only_flags_that_it_knows(line):
    words = shlex.split(line)[1:]
    (verb,) = [known for known in FLAGS if words[: len(known.split())] == known.split()]
    given = {word[2:].partition("=")[0] for word in words if word.startswith("--")}
    assert given <= FLAGS[verb]
    assert given >= {"zone"} & FLAGS[verb]
    for word in words:
        if word.startswith("--command="):
            assert shlex.split(word.removeprefix("--command="))


def test_what_is_created_is_deleted():
    verbs = [" ".join(shlex.split(line)[1:5]) for line in GCLOUD]
    for created in ("compute tpus tpu-vm", "compute tpus queued-resources", "iam service-accounts"):
        assert any(f"{created} create".startswith(verb) or verb.startswith(f"{created} create") for verb in verbs)
        assert any(verb.startswith(f"{created} delete") for verb in verbs)
    assert "gcloud storage rm --recursive gs://$BUCKET" in GCLOUD


def test_the_example_that_is_copied_there_has_the_options_that_it_is_given():
    (line,) = [line for line in GCLOUD if "torch_xla_resnet.py --" in line]
    example = (ROOT / "examples/torch_xla_resnet.py").read_text()
    program = line.partition("torch_xla_resnet.py")[2]
    assert all(f'"{option}"' in example for option in re.findall(r"(--[a-z-]+)", program))


def test_the_tpufeed_commands_run(tmp_path):
    make_photos(tmp_path, 40, "160x120")
    run_here([line.replace("gs://$BUCKET", "bucket") for line in OURS], tmp_path)
    assert (tmp_path / "bucket/flowers-224/manifest.json").exists()
    assert (tmp_path / "doctor.html").exists()
