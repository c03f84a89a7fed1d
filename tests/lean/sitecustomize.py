"""Python runs this as it starts: the folder is on the PYTHONPATH of what tests start.

Keras and TensorFlow import these if they find them. No test needs that, and where nothing but tpufeed's extras for them
is installed they find none. It is almost half of the processor time of their import.
"""

import sys

# And who asks. Keras imports JAX from other modules when it runs on it.
UNUSED = dict.fromkeys(("sklearn", "pandas", "matplotlib", "IPython"), "keras.")
UNUSED["jax"] = ("tensorflow.lite.", "keras.src.callbacks.")


class Without:
    @staticmethod
    def find_spec(name, *_):
        if name in UNUSED:
            frame = sys._getframe(1)
            while frame and "importlib" in frame.f_code.co_filename:
                frame = frame.f_back
            if frame and frame.f_globals.get("__name__", "").startswith(UNUSED[name]):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Without)
