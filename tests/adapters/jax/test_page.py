"""The programs of docs/jax.md, and that of README.md for JAX, as they stand, on 8 CPU devices."""

import os
import re
import subprocess
import sys
import textwrap

import pytest

from tests.quick_xla import QUICK
from tests.repo.docs.pages import blocks, ran

RUNS = {"jax.md": "", "README.md": "import jax\n"}


@pytest.mark.all
def test_the_programs_of_the_page_run_as_they_stand(dataset_url, cache_url, tmp_path):
    (tmp_path / "flowers").symlink_to(dataset_url)
    (tmp_path / "flowers-224").symlink_to(cache_url)
    programs = blocks("jax.md")
    assert len(programs) == 4
    cells = [block for block in blocks("README.md") if "import jax\n" in block]
    assert len(cells) == 1
    set_mesh = "with jax.set_mesh(jax.make_mesh((8,), ('data',))):\n"  # of Explicit axes
    cells.append(set_mesh + textwrap.indent(cells[-1], "    "))
    (tmp_path / "program.py").write_text("\n".join([*programs, *cells]))
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count=8 {QUICK}",
    }
    command = [sys.executable, "program.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    ran(*programs, *cells)
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"loss \d\.\d+; \d+\.\d+ s waited; \d+ bytes sent", lines[0])
    assert re.fullmatch(r"P\w*\('data', None, 'model'\) P\w*\('data',\) \(4, 64, 32, 3\)", lines[1])
    assert re.fullmatch(r"loss \d\.\d+", lines[-2])
    assert lines[-1] == lines[-2]
