"""Keras 3 on any backend: batches for `fit`, `evaluate` and `predict`, and the callback that keeps a place."""

import sys
import weakref
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tpufeed.adapters.feed import ENDLESS, Feed
from tpufeed.errors import MissingExtraError, OptionError, install_command
from tpufeed.options import is_whole
from tpufeed.stream.host import EpochIterator, HostStream

if TYPE_CHECKING:
    from tpufeed.adapters.jax.sharding import RunOps
    from tpufeed.adapters.keras.state import KerasState

try:
    import keras
except ImportError as error:
    if error.name == "keras":
        raise MissingExtraError("Keras", "keras") from error
    raise OptionError(
        f"Keras cannot be imported: {error}. It runs on TensorFlow unless the environment variable KERAS_BACKEND, or "
        "~/.keras/keras.json, says jax or torch: set KERAS_BACKEND to an installed one before Keras is imported"
    ) from error

if not hasattr(keras, "ops"):
    raise OptionError(f"tpufeed feeds Keras 3, and this is Keras {keras.__version__}: {install_command('keras')}")


_TAKEN_TO_BUILD = 2  # batches at most: JAX on an accelerator takes one ahead


def keras_feed(stream: HostStream, class_weight: Mapping[int, float] | None) -> Any:
    """Return the batches of `Loader.to_keras`."""
    if keras.backend.backend() != "tensorflow":
        return KerasFeed(stream, class_weight)
    from tpufeed.adapters.tf.dataset import tf_feed

    weights = SampleWeights(stream, class_weight)
    dataset = tf_feed(stream)
    if weights.given:
        dataset = dataset.map(lambda *batch: weights.add(batch, keras.ops))
        dataset.class_names = stream.class_names
    return dataset


class KerasFeed(Feed, keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no types
    """Epochs of a loader for Keras, see `Loader.to_keras`.

    Keras asks for batches by number, in its own order, and gets them in the loader's order. The loader's place is after
    the batches that Keras has taken, which may be one more than the training has used, see `keras_state`.

    Attributes:
        was_placed: True if the loader was given a state or an epoch before.
        cuts_epochs: True if `begin_at` may shorten an epoch: `num_batches` is then a number even with `repeat`.
    """

    stream: HostStream
    cuts_epochs = False

    def __init__(self, stream: HostStream, class_weight: Mapping[int, float] | None = None) -> None:
        keras.utils.PyDataset.__init__(self)  # in Keras' own thread: workers of the loader prepare batches ahead
        texts = [name for name in stream.form.names if stream.column(name).dtype == "O"]
        if texts:
            raise OptionError(f"Keras takes numbers, and {texts} are text: leave them out of columns=")
        self.stream = stream
        self.was_placed = stream.is_placed
        self._weights = SampleWeights(stream, class_weight)
        self._batches: EpochIterator | None = None
        self._building = False  # True while Keras iterates only to build a model
        self._built: list[tuple[int, Any]] = []  # (epoch, batch) that Keras took for building
        self._again: list[tuple[int, Any]] = []  # of these, the ones still to come again
        self._epochs = 0, 0  # epochs of the last two batches
        self._next: Mapping[str, Any] | None = None  # state at which the next batch begins, if `begin_at` gave one
        self._rest: int | None = None  # batches of the epoch that begins there, if `begin_at` gave a number
        self._placed = False  # True if `begin_at` said where the newest iteration begins
        self._epoch_begins = self._begins = False
        stream.moved_by = weakref.ref(self)

    @property
    def num_batches(self) -> int | None:
        """Number of batches of an epoch. None with `repeat`. Keras asks for it when it begins to iterate."""
        if self._epoch_begins:
            self._begins = True
            if self._rest is not None:
                return self._rest
        elif self.cuts_epochs and self.stream.options.repeat:
            return ENDLESS  # with None, Keras would take the length of a shortened epoch for all later ones
        return None if self.stream.options.repeat else len(self.stream)

    def on_epoch_begin(self) -> None:
        """Note that Keras is about to ask for batches, of a new iteration or of one that continues."""
        self._epoch_begins, self._building = True, _is_building()

    def __getitem__(self, index: int) -> Any:
        """Return the next batch."""
        # An iteration that continues is at its place already, unless another one came between.
        if self._begins or not (self._next is None or self._placed):
            self._begin()
        self._epoch_begins = self._begins = False
        self._next = self._rest = None
        epoch, batch = self._again.pop(0) if self._again else self._take()
        self._epochs = self._epochs[1], epoch
        if self._building:
            self._building = len(self._built) < _TAKEN_TO_BUILD
            self._built = [*self._built, (epoch, batch)] if self._building else []
        return batch

    def _take(self) -> tuple[int, Any]:
        batches = self._batches
        # An epoch that was resumed in its middle has fewer batches than Keras counts.
        if batches is None or not (len(batches) or self.stream.options.repeat):
            batches = self._batches = self._iterate()
        batch = next(batches)
        ops, run = self.stream.device_ops, self._run_ops
        if run is not None and ops is not None:
            batch = self.stream.form.package({**batch, **run(ops, batch)})  # type: ignore[dict-item,arg-type]  # a dict
        return batches.epoch, self._weights.add(batch, np) if self._weights.given else batch

    def _begin(self) -> None:
        """Begin the next epoch, or where `begin_at` said, or again the epoch that Keras built a model from."""
        stream, batches = self.stream, self._batches
        again, self._built = [*self._built, *self._again], []
        if self._next is None and again and batches is not None and not batches.was_moved:
            self._again, self._placed = again, False
            return
        if batches is not None:
            batches.close()
            batches.continue_after(self._epochs[0 if _takes_ahead() else 1])
        self._batches, self._again, self._placed = self._iterate(), [], self._next is not None
        if self._next not in (None, stream.state_dict()):
            stream.load_state_dict(self._next)
            self._batches = self._iterate()
        if not self._begins and _takes_ahead():
            self._take()  # Keras took this batch at the end of its last epoch

    def _iterate(self) -> EpochIterator:
        return self.stream.iterate(on_device=self._run_ops is not None)

    @cached_property
    def _run_ops(self) -> "RunOps | None":
        """A function that runs device ops on Keras' device. None to run them on the host.

        On JAX alone: for TensorFlow and torch Keras takes arrays of the host, and a distribution splits these, too.
        """
        on_host = keras.backend.backend() != "jax" or keras.distribution.distribution() is not None
        if self.stream.device_ops is None or on_host:
            return None
        from tpufeed.adapters.jax.sharding import compile_ops

        return compile_ops()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_run_ops", None)
        return state

    @property
    def begun(self) -> bool:
        """True once Keras has taken a batch since `begin_at`."""
        return self._next is None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._batches, self._built, self._again = None, [], []

    def begin_at(self, state: Mapping[str, Any], batches: int | None = None) -> None:
        """Make Keras' next batch the one at `state`, and the epoch that begins there `batches` long if given."""
        self._next, self._rest = state, batches


def _is_building() -> bool:
    """Return True if Keras iterates only to build a model from the first batch, which it then throws away.

    Keras calls the dataset just as for a step, so this looks for the model's method on the stack.
    """
    frame = sys._getframe()
    while not isinstance(model := frame.f_locals.get("self"), keras.Model):
        if frame.f_back is None:
            return False
        frame = frame.f_back
    method = frame.f_code.co_name
    if method == "predict" and keras.backend.backend() != "torch":  # there the first step builds the model
        return not all(layer.built for layer in model._flatten_layers())
    return method == "_symbolic_build"


def _takes_ahead() -> bool:
    """Return True if Keras takes one batch ahead of its steps: on JAX, to send it to an accelerator meanwhile."""
    if keras.backend.backend() != "jax" or keras.distribution.distribution() is not None:
        return False
    return bool(sys.modules["jax"].default_backend() != "cpu")


class SampleWeights:
    """Sample weights of batches, from their mask and from the classes of their labels.

    Attributes:
        masked: True if the last column of a batch is a mask.
        table: float32 weights of the classes by id, then the weight of all other labels. None if all weigh the same.

    Raises:
        OptionError: there are more columns than Keras takes, class weights for batches without one label per sample, or
            impossible weights.
    """

    def __init__(self, stream: HostStream, class_weight: Mapping[int, float] | None) -> None:
        form = stream.form
        self.masked = stream.columns.mask in form.names and not form.as_dict
        self.table: npt.NDArray[np.float32] | None = None
        names = list(form.names[: -1 if self.masked else None])
        if not form.as_dict and len(names) + (self.masked or class_weight is not None) > 3:
            raise OptionError(
                f"Keras takes an input, labels and sample weights, and columns={names} has more; for several inputs by "
                "name give columns=None"
            )
        if class_weight is None:
            return
        if form.as_dict or names[1:] != ["label"] or stream.column("label").shape:
            raise OptionError(f"class_weight is for batches of an image and one label, not of {names}")
        classes = len(stream.class_names) or 1 + max(filter(is_whole, class_weight), default=0)
        self.table = np.ones(classes + 1, np.float32)
        for number, weight in class_weight.items():
            if not is_whole(number, 0, classes - 1):
                raise OptionError(f"class_weight has weights for classes from 0 to {classes - 1}, not for {number!r}")
            self.table[number] = weight
        stream.keep_classes("class_weight")

    @property
    def given(self) -> bool:
        """True if batches get weights."""
        return self.masked or self.table is not None

    def add(self, batch: Any, arrays: Any) -> Any:
        """Return a batch with sample weights instead of its mask, computed by `arrays`: numpy or keras.ops."""
        *columns, mask = batch if self.masked else (*batch, True)
        if len(columns) == 1:  # with images alone Keras computes nothing that padding could change
            return columns[0]
        weights = arrays.array(mask, "float32")
        if self.table is not None:
            labels, other = columns[1], len(self.table) - 1
            classes = arrays.where(labels < 0, other, arrays.minimum(labels, other))
            weights = weights * arrays.take(self.table, classes, axis=0)
        return (*columns, weights)


def keras_state(loader: Feed, path: str | Path) -> "KerasState":
    """Return a callback for `fit` of Keras 3: a stopped training continues with exactly the batch that was next.

    The place in the feed follows from the optimizer's step count, which is saved with the weights. So weights of any
    step will do: from `BackupAndRestore` with any `save_freq`, or anything else that restores the optimizer as well.
    The callback finds the place when `fit` begins, sets `initial_epoch`, and makes each epoch begin at its place,
    whatever else Keras has taken from the feed, on any backend. The first epoch then covers only the remaining steps,
    and so do its logs.

    It writes one small file when a training begins, and when it continues with another batch size, number of ranks or
    number of steps per epoch. These may change. Dataset, split, seed and order may not.

    A second `fit` with the same file, in this process or another, continues where the first one stopped, even after
    Ctrl-C: `epochs` counts from the beginning of the training. To begin another training, give another path.

    Put it after the callback that restores weights. Each of several processes needs its own callback.

    Args:
        loader: the loader whose `to_keras()`, or `to_tf()` without `direct`, is given to `fit`, perhaps with a `map`.
            Call that first. The newest result counts.
        path: path or URL of the file.

    Raises:
        MissingExtraError: Keras is not installed.
        OptionError: the loader has made nothing for Keras; or, from `fit`, the file is of another dataset, split, seed
            or order, or the optimizer's count does not fit the epochs.
        DamageError: from `fit`, the file is damaged.
    """
    from tpufeed.adapters.keras.state import KerasState

    return KerasState(loader, path)
