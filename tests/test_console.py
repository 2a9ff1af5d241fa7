"""What people read in a terminal."""

from snip.common.console import show_table


def test_tables_too_wide_for_the_terminal_are_several(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    show_table(["name", "first column", "second column"], [["lenet-300", "1.0", "2.0"]], keys=1)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert ["name", "first", "column"] in lines
    assert ["lenet-300", "1.0"] in lines
    assert ["lenet-300", "2.0"] in lines
