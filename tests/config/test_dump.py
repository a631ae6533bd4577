"""What is written down means the same when it is read again."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from rollmill.config import as_yaml, load
from rollmill.config.files import read
from rollmill.config.interpolation import resolve


class Nothing(Struct):
    """A command without options."""


TEXTS = st.text("a1e0x.${}\\:'\"\n #-?~[],é*&!|>%@`=_", max_size=12)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
NODES = st.recursive(LEAVES, lambda node: st.lists(node, max_size=3) | st.dictionaries(TEXTS, node, max_size=3))


@given(tree=st.dictionaries(st.text("abc", min_size=1, max_size=3), NODES, max_size=3))
def test_any_tree_is_read_back_as_it_was(tmp_path_factory, tree):
    path: Path = tmp_path_factory.getbasetemp() / "dumped.yaml"
    path.write_text(as_yaml(tree), encoding="utf-8")
    assert resolve(read(path)) == tree


def test_text_that_looks_like_an_interpolation_is_not_one_when_it_is_loaded(write):
    tree = {"prompt": "write ${name} and ${other} here", "path": r"C:\new\${x}", "number": "1e3"}
    write("a.yaml", as_yaml(tree))
    assert load(["+config_paths=[a.yaml]"], options=Nothing).variables == tree
