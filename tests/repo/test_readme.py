"""The README's figures and links; tests/repo/docs/test_programs.py runs its commands and programs."""

import re
from pathlib import Path

from benchmarks.harness import nest, read_result

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_its_table_shows_the_results():
    rates = nest(read_result("feed")["rows"], "loader", "work", value="median")
    rows = [line.strip("| ").split(" | ") for line in README.splitlines() if re.match(r"\| .*(\d|n/a)\** \|$", line)]
    assert len(rows) == 12
    for name, *cells in rows:
        medians = [rates[name.strip("`")].get(work) for work in ("jpeg", "small", "presized", "raw")]
        assert [cell.strip("*") for cell in cells] == [f"{median:,.0f}" if median else "n/a" for median in medians], (
            name
        )


def test_the_demo_s_idle_figures_are_those_of_its_result():
    labels = (
        "raw files, Pillow in one thread",
        "shards, tf.data as Kaggle's TPU guide writes it",
        "shards, tpufeed.Loader",
        "cache, tpufeed.Loader",
    )
    idle = {row["label"]: row["idle_percent"] for row in read_result("demo")["rows"]}
    said = re.findall(r"([\d.]+)\s%", README.partition("\n## ")[0])
    assert said == [f"{idle[label]:.1f}".removesuffix(".0") for label in labels]


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
