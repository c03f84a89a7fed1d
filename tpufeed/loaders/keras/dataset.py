"""Keras 3 on any backend: what `fit`, `evaluate` and `predict` take, and what keeps the place of a `fit`."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.partition import Remainder
from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.images.protocols import Op
from tpufeed.loaders.batch import Array
from tpufeed.loaders.loader import Adapter, DatasetLike, EpochIterator, NumpyLoader, open_feed
from tpufeed.loaders.metrics import LoaderStats
from tpufeed.loaders.options import LabelFormat, LoaderOptions, Numa, take_options
from tpufeed.loaders.world import WorldLike
from tpufeed.options import checked

if TYPE_CHECKING:
    from tpufeed.loaders.keras.state import KerasState

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
ENDLESS = 1 << 62  # batches


@checked()
def keras_dataset(  # noqa: PLR0913  # each option is a parameter that editors show
    url: DatasetLike,
    split: str = "train",
    *,
    class_weight: Mapping[int, float] | None = None,
    batch_size: int = 128,
    ops: Sequence[Op] | None = None,
    columns: Sequence[str] | None = "default",
    shuffle: bool = True,
    seed: int = 0,
    remainder: Remainder = "drop",
    world: WorldLike | None = None,
    lanes: int | None = None,
    processes: int | None = None,
    threads: int | None = None,
    prefetch: int | None = None,
    repeat: bool = False,
    max_bad_records: int = 0,
    timeout_seconds: float = 600.0,
    numa: Numa = "auto",
    stage_dir: str | Path | None = None,
    stage_bytes: str | int | None = None,
    pad: Mapping[str, int] | None = None,
    truncate: bool | Sequence[str] = False,
    fill: Mapping[str, float | str] | None = None,
    label_format: LabelFormat = "ids",
    min_visibility: float = 0.0,
    views: Sequence[Any] | None = None,
) -> Any:
    """Batches of a dataset or cache for `fit`, `evaluate` and `predict` of Keras 3.

    On TensorFlow it is the `tf.data.Dataset` of `tf_dataset`, on JAX, torch and Keras' other backends a
    `keras.utils.PyDataset` of numpy arrays, for which TensorFlow need not be installed. Both give `(image, label)`:
    uint8 of shape (batch, height, width, 3) and int64 of shape (batch,), or the image alone where there are no labels.
    With a mask, which `remainder="pad"` and `max_bad_records` add, float32 sample weights of shape (batch,) come third:
    0 for padding, else 1, so that padding counts in no loss and in no weighted metric.

    Each epoch of `fit` is the next one of the dataset, with another order, other random numbers and, in a cache, the
    next variant; so is that of each call of `evaluate` and `predict`, also if it takes only some steps. The batch that
    Keras takes to build a model is given once more. With `repeat=True` give `steps_per_epoch` to `fit`. `keras_state`
    keeps the place of a `fit`.

    Args:
        url: as for `numpy_loader`, which explains all other options.
        split: which part of it.
        class_weight: the weight of each class by its id; other classes have 1. Samples are weighed by it, and padding
            stays at 0. Keras' own `class_weight` cannot be given together with a mask.

    Raises:
        MissingExtraError: Keras is not installed.
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: options that do not fit it; Keras 2; Keras' backend is not installed.
    """
    arguments = locals()
    if keras.backend.backend() == "tensorflow":
        from tpufeed.loaders.tf.dataset import tf_dataset, weigh_samples

        feed = tf_dataset(url, split, **{field.name: arguments[field.name] for field in fields(LoaderOptions)})
        return weigh_samples(feed, SampleWeights(feed.stream.loader, class_weight))
    return KerasDataset(NumpyLoader(open_feed(url), split, take_options(arguments)), class_weight)


class KerasDataset(Adapter, keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no types
    """Epochs of a loader for Keras, see `keras_dataset`.

    Keras asks for batches by number, in an order of its own; it gets them in the loader's.

    Attributes:
        loader: what reads and decodes.
        start: the loader's state where the first epoch begins.
        cuts_epochs: true if `begin_at` may shorten an epoch: `num_batches` is then a number even with `repeat`.
    """

    cuts_epochs = False

    def __init__(self, loader: NumpyLoader, class_weight: Mapping[int, float] | None = None) -> None:
        super().__init__()  # in Keras' own thread: the loader's workers prepare batches ahead
        texts = [name for name in loader.form.names if loader.column(name).dtype == "O"]
        if texts:
            raise OptionError(f"Keras takes numbers, and {texts} are text: leave them out of columns=")
        self.loader = self.source = loader
        self.start = loader.state_dict()
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

    @property
    def stream(self) -> "KerasDataset":
        """The dataset itself, as `keras_state` finds by this name what it moves."""
        return self

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

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        return len(self.loader)

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
        batch = self._weights.add(next(batches))
        return batches.epoch, batch

    def _begin(self) -> None:
        """Begin the next epoch, or where `begin_at` says, or once more the one that Keras built a model from."""
        loader, batches = self.loader, self._batches
        again, self._built = [*self._built, *self._again], []
        if self._next is None and again and batches is not None:
            self._again, self._placed = again, False
            return
        if batches is not None:
            batches.close()
            loader.go_on_after({"epoch": self._epochs[0 if _takes_ahead() else 1]})
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

    def load_state_dict(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Move the loader to where `state` says, and return its state there. Raises as the loader's does."""
        self.loader.load_state_dict(state)
        self._batches, self._built, self._again = None, [], []
        return self.loader.state_dict()

    def begin_at(self, state: Mapping[str, Any], batches: int | None = None) -> None:
        """Let the batch that Keras takes next be that of `state`, and the epoch that begins there have so many."""
        self._next, self._rest = state, batches

    def state_dict(self) -> dict[str, Any]:
        """Return the place of what Keras has taken, which may be a batch ahead of the training; see `keras_state`."""
        return self.loader.state_dict()

    def stats(self) -> LoaderStats:
        """Return what the loader has done so far, and what Keras waited for."""
        return self.loader.stats()

    def close(self) -> None:
        """Stop what decodes. A dataset that is iterated again starts it again."""
        self.loader.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.loader!r})"


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

    def __init__(self, loader: NumpyLoader, class_weight: Mapping[int, float] | None) -> None:
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

    def add(self, batch: Any) -> Any:
        """Return a batch with the weights of its samples in the place of its mask."""
        if not self.masked and self.table is None:
            return batch
        *columns, mask = batch if self.masked else (*batch, True)
        if len(columns) == 1:  # Keras computes nothing of images alone in which padding shows
            return columns[0]
        weights: Array = np.asarray(mask, np.float32)
        if self.table is not None:
            labels, other = columns[1], len(self.table) - 1
            weights = weights * self.table[np.where(labels < 0, other, np.minimum(labels, other))]
        return (*columns, weights)


def keras_state(feed: Any, path: str | Path) -> "KerasState":
    """A callback of Keras 3 for `fit`: a training that was stopped goes on with the very batch that was next.

    Where the feed has to be follows from the optimizer's count of steps, which is saved with the weights. So weights of
    any step will do: of `BackupAndRestore` with any `save_freq`, or of another way that restores the optimizer, too.
    The callback finds that place when `fit` begins, sets `initial_epoch`, and has each epoch begin where it must,
    whatever else Keras has taken from the feed, on any backend. The first epoch is then the rest of one, and its logs
    are of that.

    It writes one small file when a training begins, and when it goes on with another batch size, number of ranks or
    number of steps an epoch. These may change; dataset, split, seed and order may not.

    A second `fit` with the same file, in this process or another, goes on where the first one stopped, as it does after
    Ctrl-C: `epochs` counts from the beginning of the training. To begin another training, give another path.

    Put it behind the callback that restores weights. Of several processes each has its own.

    Args:
        feed: what `keras_dataset` returned, or `tf_dataset` without `state` and `direct`. `fit` is given that, or a
            `map` of a `tf_dataset`.
        path: of the file, also in a bucket.

    Raises:
        MissingExtraError: Keras is not installed.
        OptionError: it is no such feed. `fit` raises it where the file is of another dataset, split, seed or order, or
            where the optimizer's count does not fit the epochs.
        DamageError: `fit` raises it where the file is not what was written.
    """
    from tpufeed.loaders.keras.state import KerasState

    return KerasState(feed, path)
