"""The programs of docs/grain.md, as they stand, in this process, which has imported Grain already."""

from tests.repo.docs.pages import blocks, ran

RUNS = {"grain.md": ""}


def test_the_programs_of_the_page_run_as_they_stand(dataset_url, tmp_path, monkeypatch, capsys):
    (tmp_path / "flowers").symlink_to(dataset_url)
    monkeypatch.chdir(tmp_path)
    programs = blocks("grain.md")
    assert len(programs) == 3
    exec("\n".join(programs), {"__name__": "page"})
    ran(*programs)
    assert capsys.readouterr().out == "8 batches of (16, 64, 64, 3)\n"
