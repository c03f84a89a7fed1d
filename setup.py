"""The C extension; all else stands in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "tpufeed.images._restart",
            ["tpufeed/images/_restart.c"],
            extra_compile_args=["-O3"],
            extra_link_args=["-Wl,-s"],  # no names of the builder's folders in the wheel
            py_limited_api=True,
            optional=True,  # without a compiler all works but for restart markers in JPEGs that are kept
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # one wheel a platform for all Pythons from 3.11 on
)
