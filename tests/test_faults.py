"""The table of planted faults fits the source: `python tools/faults.py` runs them."""

import pytest
from fault_table import FAULTS, Fault
from faults import MovedError, check, planted

FILE = "x = 1\ny = 2  # two\n"
HARMLESS = Fault("two-is-three", "a.py", "y = 2", "y = 3", "test_a.py::test_y")


def test_sixty_faults_have_names_of_their_own():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 60


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_line_is_there_once_the_fault_compiles_and_its_tests_exist(fault):
    check(fault)


@pytest.fixture
def tree(tmp_path):
    for name, text in {"src/snip/a.py": FILE, "tests/test_a.py": "def test_y(): pass\n"}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"file": "b.py"}, "there is no b.py"),
        ({"line": "y = 5"}, "0 times"),
        ({"line": " = "}, "2 times"),
        ({"instead": "y = 2"}, "a part of one line"),
        ({"instead": "y = 3\nz = 4"}, "a part of one line"),
        ({"instead": "y = ("}, "would not compile"),
        ({"line": "# two", "instead": "# three"}, "the program would be the same"),
        ({"tests": "test_b.py"}, "there is no test test_b.py"),
        ({"tests": "test_a.py::test_x"}, "there is no test test_a.py::test_x"),
    ],
)
def test_a_fault_that_does_not_fit_is_named(tree, changes, words):
    check(HARMLESS, tree)
    with pytest.raises(MovedError, match=words):
        check(Fault(**vars(HARMLESS) | changes), tree)


def test_a_fault_is_planted_in_a_copy_and_taken_out(tree):
    path = tree / "src/snip/a.py"
    with planted(HARMLESS, tree):
        assert path.read_text() == FILE.replace("y = 2", "y = 3")
    assert path.read_text() == FILE
