"""The counts that `make lint` holds below their ceilings."""

from pathlib import Path

import pytest
from tree import count_tree, excesses, lowered

FILES = {
    "snip/__init__.py": "from snip.a.one import f\n",
    "snip/a/__init__.py": "",
    "snip/a/one.py": '"""Subject."""\nfrom snip.a import two\ndef f():\n    """Of it."""\n',
    "snip/a/two.py": '"""Which."""\n',
    "snip/b.py": "def g():\n    from snip.a.one import f\n    return f\n",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_counts_of_a_package_and_of_all(source: Path) -> None:
    counts = count_tree(source)
    expected = {"files": 3, "lines": 5, "single_importer": 1, "odd_docstrings": 1}
    assert counts["snip.a"] == expected  # one.py has two importers, one of them in a function
    assert counts["total"] == expected | {"files": 5, "lines": 9}


def test_a_count_above_its_ceiling_is_named_and_ceilings_only_fall(source: Path) -> None:
    ceilings = count_tree(source)
    assert excesses(ceilings, ceilings) == []
    (source / "snip/a/three.py").write_text('"""How so."""\n')
    counts = count_tree(source)
    rows = [sentence.partition(":")[0] for sentence in excesses(counts, ceilings)]
    assert rows == ["snip.a"] * 3 + ["total"] * 3  # files, lines and docstrings
    assert lowered(counts, ceilings) == ceilings
