"""Run one of the benchmarks, `python benchmarks/run.py NAME [options]`, or list them, without a name.

`python benchmarks/run.py NAME --help` says what NAME measures.
"""

import ast
import importlib
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Run the script that the first argument names, with the others."""
    scripts = find_scripts()
    if not arguments or arguments[0] in ("-h", "--help"):
        print("python benchmarks/run.py NAME [options]; NAME --help says more\n")
        for name, about in scripts.items():
            print(f"  {name:11}{about}")
        return 0
    name, *others = arguments
    if name not in scripts:
        print(f"run.py: there is no {name}; there are: {' '.join(scripts)}", file=sys.stderr)
        return 2
    return importlib.import_module(f"benchmarks.{name.replace('-', '_')}").main(others) or 0


def find_scripts() -> dict[str, str]:
    """Return the first line of each script's docstring, by its name. A script is a file with a `main`."""
    scripts = {}
    for file in sorted(set(FOLDER.glob("*.py")) - {Path(__file__)}):
        tree = ast.parse(file.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            scripts[file.stem.replace("_", "-")] = str(ast.get_docstring(tree)).partition("\n")[0]
    return scripts


if __name__ == "__main__":
    # Not this folder: its grain.py and spdl.py would hide the packages of these names.
    sys.path[0] = str(FOLDER.parent)
    sys.exit(main(sys.argv[1:]))
