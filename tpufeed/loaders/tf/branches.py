"""Control flow in TensorFlow graphs without the cost of what does not happen."""

from collections.abc import Callable

from tpufeed.errors import MissingExtraError

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtraError("TensorFlow", "tf") from error


def rare(branch: Callable[[], tf.Tensor]) -> Callable[[], tf.Tensor]:
    """A branch of tf.cond or tf.switch_case as a function that is called.

    TensorFlow lays a branch's nodes into the graph around it and visits each even where the branch is not taken: with
    the ways of decoding a photograph that was 0.04 ms an image. A call is one node; taken, it costs some 10 us.
    """
    function: Callable[[], tf.Tensor] = tf.function(
        branch, autograph=False, experimental_attributes={"_noinline": True}
    )
    return function
