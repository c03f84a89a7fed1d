"""What pip-audit found, judged. Exit code 0: all packages were looked up and nothing is open. See scripts/audit."""

import json
import sys
from pathlib import Path

# Vulnerability -> why it does no harm here, and until when that was looked at. None at present.
EXPLAINED: dict[str, str] = {}
OURS = {"tpufeed"}  # on no index yet under the version that is checked out


def main(path: Path) -> int:
    text = path.read_text() if path.exists() else ""
    if not text.strip():
        print("scripts/audit: pip-audit gave no result; its message stands above", file=sys.stderr)
        return 2
    problems = judge(json.loads(text)["dependencies"])
    print("\n".join(problems) or "scripts/audit: no known vulnerability that is not explained")
    return bool(problems)


def judge(packages: list[dict]) -> list[str]:
    """A line for each vulnerability that is open, and one for packages that nobody could look up."""
    problems = [
        f"{package['name']} {package['version']}: {found['id']}"
        f" (fixed in {', '.join(found['fix_versions']) or 'no version'})"
        for package in packages
        for found in package.get("vulns", ())
        if not EXPLAINED.keys() & {found["id"], *found.get("aliases", ())}
    ]
    unknown = sorted(
        package["name"] for package in packages if "skip_reason" in package and package["name"] not in OURS
    )
    if unknown:
        shown = ", ".join(unknown[:5])
        problems.append(f"{len(unknown)} of {len(packages)} packages could not be looked up: {shown} ...")
    return problems


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
