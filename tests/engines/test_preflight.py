"""The preflight of a build: what each host must have and see."""

import re

import pytest

from tpufeed.engines.preflight import HostView, check_hosts
from tpufeed.errors import BuildError, install_command

LAUNCHER = HostView("head", "3.12.4", "1.2", places={"gs://b/plan": "7", "gs://b/a.jpg": "1"})


@pytest.mark.parametrize("python", ["3.12.4", "3.12.9"])
def test_a_host_that_has_and_sees_the_same_may_work(python):
    check_hosts([HostView("one", python, "1.2", places={**LAUNCHER.places, "gs://b/c.jpg": "2"})], LAUNCHER)


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (HostView("one", "3.12.4", None, "No module"), re.escape(install_command())),
        (HostView("one", "3.12.4", "1.3"), "tpufeed 1.3"),
        (HostView("one", "3.13.4", "1.2"), "Python 3.13.4"),
        (HostView("one", "3.12.4", "1.2", "no way"), "no way"),
        (HostView("one", "3.12.4", "1.2"), "gs://b/plan"),
        (
            HostView("one", "3.12.4", "1.2", places={"gs://b/plan": "7", "gs://b/a.jpg": "2"}),
            "gs://b/a.jpg",
        ),
    ],
)
def test_what_a_host_lacks_is_said(view, said):
    with pytest.raises(BuildError, match=said):
        check_hosts([view], LAUNCHER)


def test_each_host_that_lacks_something_is_named_once():
    views = [HostView(name, "3.12.4", "1.2", "no way") for name in ("one", "two", "one")]
    with pytest.raises(BuildError) as caught:
        check_hosts(views, LAUNCHER)
    assert [line.split()[0] for line in str(caught.value).splitlines()] == ["one", "two"]
