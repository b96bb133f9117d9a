"""What whoever may not read a file is told to do depends on who he is and on what he looks at."""

from __future__ import annotations

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import tree


@pytest.mark.parametrize(
    ("root", "user", "said"),
    [("/", 1000, "run as root"), ("/", 0, "outside of this container"), ("/captured", 0, "capture the tree as root")],
)
def test_the_remedy_fits(monkeypatch: pytest.MonkeyPatch, root: str, user: int, said: str) -> None:
    monkeypatch.setattr(tree.os, "geteuid", lambda: user)
    assert said in tree.Tree(root).remedy
