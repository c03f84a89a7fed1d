"""Keras 3 on any backend: what `fit`, `evaluate` and `predict` take, and what keeps the place of a `fit`."""

import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.loaders.feed import ENDLESS, Feed

if TYPE_CHECKING:
    from tpufeed.loaders.keras.state import KerasState
    from tpufeed.loaders.loader import EpochIterator, Loader

try:
    import keras
except ImportError as error:
    if error.name == "keras":
        raise MissingExtraError("Keras", "keras") from error
    raise OptionError(
        f"Keras cannot be imported: {error}. It runs on TensorFlow unless the environment variable KERAS_BACKEND, or "
        "~/.keras/keras.json, says jax or torch: set KERAS_BACKEND to one that is installed before Keras is imported"
    ) from error

if not hasattr(keras, "ops"):
    raise OptionError(f"tpufeed feeds Keras 3, and this is Keras {keras.__version__}: pip install 'tpufeed[keras]'")


_TAKEN_TO_BUILD = 2  # batches, at most: by JAX on an accelerator, which takes one ahead


def keras_feed(loader: "Loader", class_weight: Mapping[int, float] | None) -> Any:
    """Return what `Loader.to_keras` does."""
    if keras.backend.backend() != "tensorflow":
        return KerasFeed(loader, class_weight)
    weights = SampleWeights(loader, class_weight)
    dataset = loader.to_tf()
    return dataset.map(lambda *batch: weights.add(batch, keras.ops)) if weights.given else dataset


class KerasFeed(Feed, keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no types
    """Epochs of a loader for Keras, see `Loader.to_keras`.

    Keras asks for batches by number, in its own order; it gets them in the loader's. The loader's place is behind what
    Keras has taken, which may be a batch ahead of the training; see `keras_state`.

    Attributes:
        was_placed: true if the loader had been told where to begin.
        cuts_epochs: true if `begin_at` may shorten an epoch: `num_batches` is then a number even with `repeat`.
    """

    loader: "Loader"
    cuts_epochs = False

    def __init__(self, loader: "Loader", class_weight: Mapping[int, float] | None = None) -> None:
        keras.utils.PyDataset.__init__(self)  # in Keras' own thread: the loader's workers prepare batches ahead
        texts = [name for name in loader.form.names if loader.column(name).dtype == "O"]
        if texts:
            raise OptionError(f"Keras takes numbers, and {texts} are text: leave them out of columns=")
        self.loader = loader
        self.was_placed = loader.is_placed
        self._weights = SampleWeights(loader, class_weight)
        self._batches: EpochIterator | None = None
        self._building = False  # Keras iterates only to build a model
        self._built: list[tuple[int, Any]] = []  # epochs and batches that it has taken for that
        self._again: list[tuple[int, Any]] = []  # those that are to come once more
        self._epochs = 0, 0  # of the last two batches
        self._next: Mapping[str, Any] | None = None  # where the next batch is to be
        self._rest: int | None = None  # batches that Keras is to take from there, where they are fewer than an epoch
        self._placed = False  # `begin_at` said where the newest iteration begins
        self._epoch_begins = self._begins = False
        loader.moved_by = weakref.ref(self)

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch, None with `repeat`. Keras asks for it when it begins to iterate."""
        if self._epoch_begins:
            self._begins = True
            if self._rest is not None:
                return self._rest
        elif self.cuts_epochs and self.loader.options.repeat:
            return ENDLESS  # for None Keras takes the first epoch that ends early as the length of all later ones
        return None if self.loader.options.repeat else len(self.loader)

    def on_epoch_begin(self) -> None:
        """Keras is about to ask for batches, of a new iteration or of one that goes on."""
        self._epoch_begins, self._building = True, _is_building()

    def __getitem__(self, index: int) -> Any:
        """Return the next batch."""
        # An iteration that continues is in its place, and Keras may be a batch ahead, unless another one came between.
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
        # An epoch that was begun in its midst has fewer batches than Keras counts.
        if batches is None or not (len(batches) or self.loader.options.repeat):
            batches = self._batches = iter(self.loader)
        batch = next(batches)
        return batches.epoch, self._weights.add(batch, np) if self._weights.given else batch

    def _begin(self) -> None:
        """Begin the next epoch, or where `begin_at` says, or once more the one that Keras built a model from."""
        loader, batches = self.loader, self._batches
        again, self._built = [*self._built, *self._again], []
        if self._next is None and again and batches is not None and not batches.was_moved:
            self._again, self._placed = again, False
            return
        if batches is not None:
            batches.close()
            batches.continue_after(self._epochs[0 if _takes_ahead() else 1])
        self._batches, self._again, self._placed = iter(loader), [], self._next is not None
        if self._next not in (None, loader.state_dict()):
            loader.load_state_dict(self._next)
            self._batches = iter(loader)
        if not self._begins and _takes_ahead():
            self._take()  # Keras has had it since the end of its last epoch

    @property
    def begun(self) -> bool:
        """True once Keras has taken a batch from where `begin_at` said."""
        return self._next is None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._batches, self._built, self._again = None, [], []

    def begin_at(self, state: Mapping[str, Any], batches: int | None = None) -> None:
        """Let the batch that Keras takes next be that of `state`, and the epoch that begins there have so many."""
        self._next, self._rest = state, batches


def _is_building() -> bool:
    """Tell whether Keras iterates to build a model from the first batch, which it then throws away.

    Keras calls the dataset as it does for a step, so this looks for the method of the model that iterates.
    """
    frame = sys._getframe()
    while not isinstance(model := frame.f_locals.get("self"), keras.Model):
        if frame.f_back is None:
            return False
        frame = frame.f_back
    method = frame.f_code.co_name
    if method == "predict" and keras.backend.backend() != "torch":  # whose first step builds the model
        return not all(layer.built for layer in model._flatten_layers())
    return method == "_symbolic_build"


def _takes_ahead() -> bool:
    """Tell whether Keras takes a batch more than it uses: of JAX it sends that to an accelerator meanwhile."""
    if keras.backend.backend() != "jax" or keras.distribution.distribution() is not None:
        return False
    return bool(sys.modules["jax"].default_backend() != "cpu")


class SampleWeights:
    """Sample weights of batches, from their mask and from the classes of their labels.

    Attributes:
        masked: true where the last column of a batch is a mask.
        table: float32 weights of the classes by id, and last that of all other labels; None where all weigh the same.

    Raises:
        OptionError: more columns than Keras takes; weights for batches without one label a sample, or that are none.
    """

    def __init__(self, loader: "Loader", class_weight: Mapping[int, float] | None) -> None:
        form = loader.form
        self.masked = loader.columns.mask in form.names and not form.as_dict
        self.table: npt.NDArray[np.float32] | None = None
        names = list(form.names[: -1 if self.masked else None])
        if not form.as_dict and len(names) + (self.masked or class_weight is not None) > 3:
            raise OptionError(
                f"Keras takes an input, labels and sample weights, and columns={names} are more; for several inputs by "
                "name give columns=None"
            )
        if class_weight is None:
            return
        if form.as_dict or names[1:] != ["label"] or loader.column("label").shape:
            raise OptionError(f"class_weight is for batches of an image and one label, not of {names}")
        classes = len(loader.class_names) or 1 + max(class_weight, default=0)
        self.table = np.ones(classes + 1, np.float32)
        for number, weight in class_weight.items():
            if number not in range(classes) or not weight >= 0:
                raise OptionError(
                    f"class_weight has a weight of 0 or more for classes from 0 to {classes - 1}, not {weight!r} for "
                    f"{number!r}"
                )
            self.table[number] = weight

    @property
    def given(self) -> bool:
        """True if batches are to have weights."""
        return self.masked or self.table is not None

    def add(self, batch: Any, arrays: Any) -> Any:
        """Return a batch with the weights of its samples in the place of its mask, by functions of numpy or Keras."""
        *columns, mask = batch if self.masked else (*batch, True)
        if len(columns) == 1:  # Keras computes nothing of images alone in which padding shows
            return columns[0]
        weights = arrays.array(mask, "float32")
        if self.table is not None:
            labels, other = columns[1], len(self.table) - 1
            classes = arrays.where(labels < 0, other, arrays.minimum(labels, other))
            weights = weights * arrays.take(self.table, classes, axis=0)
        return (*columns, weights)


def keras_state(loader: "Loader", path: str | Path) -> "KerasState":
    """A callback of Keras 3 for `fit`: a training that was stopped goes on with the very batch that was next.

    Where the feed has to be follows from the optimizer's count of steps, which is saved with the weights. So weights of
    any step will do: of `BackupAndRestore` with any `save_freq`, or of another way that restores the optimizer, too.
    The callback finds that place when `fit` begins, sets `initial_epoch`, and has each epoch begin where it must,
    whatever else Keras has taken from the feed, on any backend. The first epoch then covers only the remaining steps,
    and so do its logs.

    It writes one small file when a training begins, and when it goes on with another batch size, number of ranks or
    number of steps an epoch. These may change; dataset, split, seed and order may not.

    A second `fit` with the same file, in this process or another, continues where the first one stopped, also after
    Ctrl-C: `epochs` counts from the beginning of the training. To begin another training, give another path.

    Put it behind the callback that restores weights. Each of several processes has its own.

    Args:
        loader: the one whose `to_keras()`, or `to_tf()` without `direct`, `fit` is given, or a `map` of that. Make
            that first; it is the newest that counts.
        path: of the file, also in a bucket.

    Raises:
        MissingExtraError: Keras is not installed.
        OptionError: nothing for Keras was made of it. `fit` raises it where the file is of another dataset, split,
            seed or order, or where the optimizer's count does not fit the epochs.
        DamageError: `fit` raises it where the file is not what was written.
    """
    from tpufeed.loaders.keras.state import KerasState

    return KerasState(loader, path)
