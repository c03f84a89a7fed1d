"""Random chains of device ops against numpy and Pillow; `python -m tests.oracle` goes on."""

import numpy as np
import pytest

from tests.frameworks import lazy
from tests.oracle.device import by_torch, check_often

jax = lazy("jax")
JAX = lazy("tpufeed.adapters.jax.arrays:ARRAYS")


@pytest.mark.uses("torch")
def test_chains_of_device_ops():
    check_often(0, 60, by_torch)


@pytest.mark.all
@pytest.mark.uses("jax")
def test_chains_of_device_ops_as_xla_compiles_them():
    def by_jax(ops, columns, numbers):
        made = jax.jit(lambda given: ops.run(given, JAX))({**columns, "(device_ops)": numbers})
        return {name: np.asarray(column) for name, column in made.items()}

    check_often(1, 12, by_jax)
