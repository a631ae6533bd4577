"""NeMo Gym's training documents: where they are, and the code blocks in them.

They are not part of this repository; the tests look for them in `../shared/seeds` beside it, or in the folder that
`ROLLMILL_SEEDS` names.
"""

import os
import re
from pathlib import Path

import pytest
from tests.conftest import ROOT

SEEDS = Path(os.environ.get("ROLLMILL_SEEDS", ROOT.parent / "shared" / "seeds"))

needs_documents = pytest.mark.skipif(not SEEDS.is_dir(), reason=f"NeMo Gym's documents are not in {SEEDS}")

_FENCED = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(seed: str, language: str) -> list[str]:
    """The code blocks of a document, in its order."""
    text = next(SEEDS.glob(f"{seed}_*.txt")).read_text()
    return [found["code"] for found in _FENCED.finditer(text) if found["language"] == language]


def block(seed: str, language: str, words: str) -> str:
    """The one code block of a document that contains some words."""
    found = [code for code in blocks(seed, language) if words in code]
    assert len(found) == 1, f"{len(found)} blocks of seed {seed} contain {words!r}"
    return found[0]


def quoted(script: str) -> str:
    """What `watch` runs again and again."""
    return script[script.index("'") + 1 : script.rindex("'")]
