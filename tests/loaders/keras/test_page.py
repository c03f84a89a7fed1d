"""Every program of docs/keras.md runs as it stands, on JAX."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/keras.md"


def test_the_programs_are_one_that_runs(tmp_path, dataset_url, cache_url):
    shutil.copytree(dataset_url, tmp_path / "flowers")
    shutil.copytree(cache_url, tmp_path / "flowers-224")
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(programs) == 4
    last = "import sys; assert 'tensorflow' not in sys.modules; print(scores.shape)"
    (tmp_path / "program.py").write_text("\n".join([*programs, last]))
    variables = {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=os.environ | variables | {"TPUFEED_PROCESSES": "0"},
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("val_accuracy") == 5
    assert done.stdout.splitlines()[-1] == "(26, 3)"
    assert (tmp_path / "backup.json").is_file()
