"""The C extension, and the builds of Python that have no wheels; all else stands in pyproject.toml."""

import sysconfig

from setuptools import Extension, setup

# The wheel does not fit such a build: pip comes here, and would go on to compile simplejpeg and OpenCV.
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise SystemExit(
        "tpufeed does not run on free-threaded builds of Python, like 3.14t: simplejpeg and OpenCV have no wheels for "
        "them. Use an ordinary build of Python 3.11 to 3.14; docs/install.md says how to get one."
    )

setup(
    ext_modules=[
        Extension(
            "tpufeed.images._restart",
            ["tpufeed/images/_restart.c"],
            depends=["tpufeed/images/_coefficients.h", "tpufeed/images/_blocks.h"],
            extra_compile_args=["-O3"],
            extra_link_args=["-Wl,-s"],  # no names of the builder's folders in the wheel
            py_limited_api=True,
            optional=True,  # without a compiler all works but for restart markers in JPEGs that are kept
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # one wheel a platform for all Pythons from 3.11 on
)
