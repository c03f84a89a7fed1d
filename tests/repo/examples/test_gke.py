"""examples/gke: fields are those of Kubernetes and JobSet, and the image has what the pods run. No cluster is asked."""

import importlib
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
JOBSET = yaml.safe_load((ROOT / "examples/gke/jobset.yaml").read_text())
DOCKERFILE = (ROOT / "examples/gke/Dockerfile").read_text().replace("\\\n", " ")
STEPS = [line.split(None, 1) for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
# From JobSet's reference of jobset.x-k8s.io/v1alpha2; what stands in `template` is Kubernetes' own.
FIELDS = {
    "JobSet": {"apiVersion", "kind", "metadata", "spec"},
    "JobSetSpec": {
        *("replicatedJobs", "network", "successPolicy", "failurePolicy", "startupPolicy", "suspend", "coordinator"),
        *("managedBy", "ttlSecondsAfterFinished"),
    },
    "FailurePolicy": {"maxRestarts", "restartStrategy", "rules"},
    "ReplicatedJob": {"name", "groupName", "template", "replicas", "dependsOn"},
}


@pytest.fixture(scope="module")
def models() -> Any:
    return importlib.import_module("kubernetes.client.models")


def check(models: Any, kind: str, value: Any, where: str) -> None:
    """Compare a value with the client's model of it: names and types of all fields, and those that must be there."""
    inner = re.fullmatch(r"([Ll]ist|[Dd]ict)[\[(](?:str, )?(.+)[\])]", kind)
    if inner:
        assert isinstance(value, list if inner[1].lower() == "list" else dict), where
        for key, each in enumerate(value) if inner[1].lower() == "list" else value.items():
            check(models, inner[2], each, f"{where}.{key}")
    elif hasattr(models, kind):
        model = getattr(models, kind)
        names = {name: attribute for attribute, name in model.attribute_map.items()}
        assert set(value) <= set(names), where
        for name, each in value.items():
            check(models, model.openapi_types[names[name]], each, f"{where}.{name}")
        model(**{names[name]: each for name, each in value.items()})  # ValueError where a field is missing
    else:
        assert isinstance(value, {"str": str, "int": int, "bool": bool}[kind]), where


def test_the_checker_finds_what_is_wrong(models: Any) -> None:
    check(models, "V1EmptyDirVolumeSource", {"medium": "Memory"}, "volume")
    for wrong in ({"medum": "Memory"}, {"medium": 3}):
        with pytest.raises(AssertionError):
            check(models, "V1EmptyDirVolumeSource", wrong, "volume")
    with pytest.raises(ValueError, match="name"):
        check(models, "V1PodSpec", {"containers": [{"image": "x"}]}, "pod")


def test_each_field_of_the_jobset_is_one_that_there_is(models: Any) -> None:
    assert (JOBSET["apiVersion"], JOBSET["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (job,) = JOBSET["spec"]["replicatedJobs"]
    for name, value in (
        ("JobSet", JOBSET),
        ("JobSetSpec", JOBSET["spec"]),
        ("FailurePolicy", JOBSET["spec"]["failurePolicy"]),
        ("ReplicatedJob", job),
    ):
        assert set(value) <= FIELDS[name]
    check(models, "V1ObjectMeta", JOBSET["metadata"], "metadata")
    check(models, "V1JobTemplateSpec", job["template"], "template")


def test_the_jobset_agrees_with_itself_and_with_the_image() -> None:
    job = JOBSET["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    limits = container["resources"]["limits"]
    rows, columns = map(int, pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x"))
    assert job["parallelism"] == job["completions"] == rows * columns // int(limits["google.com/tpu"])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    gigabytes = [
        int(size.removesuffix("Gi")) for size in (mounts["/dev/shm"]["emptyDir"]["sizeLimit"], limits["memory"])
    ]
    assert gigabytes[0] < gigabytes[1]  # or local copies alone could have the pod killed
    assert container["securityContext"]["readOnlyRootFilesystem"]
    user = pod["securityContext"]
    assert ["USER", f"{user['runAsUser']}:{user['runAsGroup']}"] in STEPS
    variables = dict(pair.split("=") for step, rest in STEPS if step == "ENV" for pair in shlex.split(rest))
    assert {variables["HOME"], variables["TMPDIR"]} <= set(mounts)
    program = Path(container["command"][1])
    assert f"examples/{program.name} {program.parent}/" in [rest for step, rest in STEPS if step == "COPY"]
    code = (ROOT / "examples" / program.name).read_text()
    assert all(f'"{word}"' in code for word in container["args"] if word.startswith("--"))


def test_what_the_dockerfile_copies_and_installs_is_there() -> None:
    assert {step for step, _ in STEPS} <= {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER"}
    copied = [rest.split()[:-1] for step, rest in STEPS if step == "COPY" and not rest.startswith("--from=")]
    assert copied
    assert all((ROOT / name).exists() for names in copied for name in names)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # What the build reads has to be among what is copied.
    assert {project["readme"], *project["license-files"], "pyproject.toml", "setup.py", "tpufeed"} <= {
        name for names in copied for name in names
    }
    (extras,) = re.findall(r"\.whl\)\[([\w,]+)\]", DOCKERFILE)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
