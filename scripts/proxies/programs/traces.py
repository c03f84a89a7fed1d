"""Programs of the frameworks as StableHLO text, traced on a CPU: `traces.py jax|torch_xla|tensorflow BATCH FOLDER`.

Device ops in chains, images as floats, and the steps of examples. A file "WAY, PROGRAM.mlir" each, for tpu_costs.py.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3] / "examples"))
os.environ.update(JAX_PLATFORMS="cpu", PJRT_DEVICE="CPU", TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND="tensorflow")

import numpy as np
from chains import CHAINS, OUT, SIDE, USUAL

import tpufeed
from tpufeed.images.device import DeviceOps

CLASSES = 10


def trace_jax(batch: int) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the examples' steps. Device ops need no text: JAX itself compiles them."""
    import jax
    import jax.numpy as jnp

    def trace(step: Any, *given: Any) -> str:
        jitted = step if hasattr(step, "trace") else jax.jit(step)
        return str(jitted.trace(*given).lower(lowering_platforms=("tpu",)).as_text())

    def images(side: int) -> Any:
        return jax.ShapeDtypeStruct((batch, side, side, 3), jnp.uint8)

    import grain_flowers
    import jax_flowers
    import jax_orbax
    import samples_jax

    labels = jax.ShapeDtypeStruct((batch,), jnp.int32)
    params = jax_flowers.make_params(CLASSES, 0)
    yield "jax_flowers.py", trace(jax_flowers.step, (params, params), images(OUT), labels, 0.1)
    params = {"weights": jnp.zeros((27, CLASSES)), "bias": jnp.zeros(CLASSES)}
    yield "jax_orbax.py", trace(jax_orbax.step, params, images(OUT), labels)
    yield "grain_flowers.py", trace(grain_flowers.step, grain_flowers.make_params(CLASSES, 0), images(OUT), labels, 0.1)
    params, targets = samples_jax.init(CLASSES), jax.ShapeDtypeStruct((batch, CLASSES), jnp.float32)
    given = params, (params, params, 0), 0.1, images(samples_jax.SIZE), targets
    yield "samples_jax.py", trace(samples_jax.step, samples_jax.tags_loss, *given)


def trace_torch_xla(batch: int) -> Iterator[tuple[str, str]]:
    """Yield names and texts."""
    import torch
    import torch_xla
    import torch_xla_resnet
    from torch_xla.core import xla_model

    from tpufeed.adapters.torch.arrays import ARRAYS

    device = torch_xla.device()

    def zeros(*shape: int, dtype: Any = torch.uint8) -> Any:
        return torch.from_numpy(np.zeros(shape, str(dtype).removeprefix("torch."))).to(device)

    for name in USUAL:
        ops = DeviceOps(CHAINS[name], (SIDE, SIDE))
        images, numbers = zeros(batch, SIDE, SIDE, 3), zeros(batch, ops.width, dtype=torch.float32)
        yield name, xla_model.get_stablehlo([ops.apply(images, numbers, ARRAYS)])
    images = zeros(batch, OUT, OUT, 3)
    yield "to_device_float", xla_model.get_stablehlo([tpufeed.to_device_float(images)])
    model = torch_xla_resnet.ResNet(CLASSES, torch_xla_resnet.parse(["--data", ""])).to(device)
    optimizer, labels = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), zeros(batch, dtype=torch.int64)
    torch_xla.sync()  # what made the weights is no part of the step
    loss = torch.nn.functional.cross_entropy(torch_xla_resnet.scores_of(model, images), labels)
    loss.backward()
    torch_xla_resnet.apply_gradients(optimizer)
    yield "torch_xla_resnet.py", xla_model.get_stablehlo([loss, *model.parameters()])


def trace_tensorflow(batch: int) -> Iterator[tuple[str, str]]:
    """Yield names and texts."""
    import keras_flowers
    import tensorflow as tf

    from tpufeed.adapters.tf.arrays import ARRAYS

    keras = keras_flowers.keras

    def floats_of(images: Any) -> Any:  # without parameters that have a default: they would become inputs
        return tpufeed.to_device_float(images)

    def trace(function: Any, *given: Any) -> str:
        compiled = tf.function(function, jit_compile=True)
        text = str(compiled.experimental_get_compiler_ir(*given)(stage="stablehlo"))
        # Results are copies, which the compiler does not read as text. To the same shape, a reshape is one.
        return re.sub(r"mhlo\.copy (%\w+) : (\S+)", r"stablehlo.reshape \1 : (\2) -> \2", text)

    ops = DeviceOps(CHAINS[USUAL[0]], (SIDE, SIDE))  # TensorFlow's other chains are torch_xla's
    given = tf.zeros((batch, SIDE, SIDE, 3), tf.uint8), tf.zeros((batch, ops.width))
    yield USUAL[0], trace(lambda images, numbers: ops.apply(images, numbers, ARRAYS), *given)
    images, labels = tf.zeros((batch, OUT, OUT, 3), tf.uint8), tf.zeros((batch,), tf.int32)
    yield "to_device_float", trace(floats_of, images)
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model, optimizer = keras_flowers.make_model((OUT, OUT, 3), CLASSES), keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    yield "keras_flowers.py", trace(step, images, labels)


def main(way: str, batch: str, folder: str) -> None:
    names = {"jax": "JAX", "torch_xla": "torch_xla", "tensorflow": "TensorFlow"}
    trace = {"jax": trace_jax, "torch_xla": trace_torch_xla, "tensorflow": trace_tensorflow}[way]
    for program, text in trace(int(batch)):
        Path(folder, f"{names[way]}, {program}.mlir").write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
