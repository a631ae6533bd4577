"""The commands of the documentation are commands of bash and of this package: their names, flags and keys exist."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.test_docs import FENCE, PAGES, relative

from rollmill.cli import main, ng
from rollmill.cli.config import ConfigOptions, Settings
from rollmill.config import overrides
from rollmill.config.instances import KINDS
from rollmill.config.layers import RESERVED

DESCRIPTOR = re.compile(r"\b[12](?=>)")
BEFORE_A_COMMAND = {"time", "do", "then", "!"}


def scripts(page: Path) -> list[str]:
    return [found["code"] for found in FENCE.finditer(page.read_text("utf-8")) if found["language"] == "bash"]


def commands(script: str) -> Iterator[list[str]]:
    """The commands of a script, each as its words; the name of a file that one reads or writes counts as one, too."""
    for line in DESCRIPTOR.sub("", script.replace("\\\n", " ")).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if set(word) <= set("();<>|&"):
                yield words
                words = []
            elif words or word not in BEFORE_A_COMMAND:
                words.append(word)
        yield words


def refuse_keys(words: list[str], options: type[msgspec.Struct]) -> None:
    """An option of the command, a key that all commands know, or a field of an instance by its path."""
    # Those that only show a configuration read it as a collection does.
    read = Settings if options is ConfigOptions else options
    known = {field.encode_name for field in msgspec.structs.fields(read)} | RESERVED
    for word in words:
        path = overrides.parse(word).path
        instance = len(path) > 1 and path[1] in KINDS
        assert path[0] in known or instance, f"{word}: the command has no such key"


def check(words: list[str]) -> None:
    name = words[0]
    if name.startswith(ng.PREFIXES):
        prefix = next(prefix for prefix in ng.PREFIXES if name.startswith(prefix))
        assert name.removeprefix(prefix) in ng.COMMANDS, f"there is no {name}"
        given = [word for word in words[1:] if word not in ("--help", "+help=true")]
        refuse_keys(given, ng.find(name.removeprefix(prefix)).options)
    elif name == "rollmill":
        assert words[1] in main.COMMANDS, f"there is no {' '.join(words[:2])}"
        arguments, rest = main.parser_of(words[1:2]).parse_known_args(words[1:])
        assert not [word for word in rest if word.startswith("-")], words
        if hasattr(arguments, "options"):
            keys = [word for word in (*rest, *getattr(arguments, "words", ())) if re.match(r"[+~]?\S+=", word)]
            refuse_keys(keys, arguments.options)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_commands_exist_and_take_what_they_are_given(page):
    for script in scripts(page):
        for words in commands(script):
            if words:
                check(words)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_blocks_of_commands_parse(page):
    for script in scripts(page):
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), script


def test_commands_are_found():
    script = "time ng_run \\\n  +a=1 'b c' 2>&1 | tee log   # as ng_test\n(echo; ng_test) &\n+limit=3\n"
    assert [words for words in commands(script) if words] == [
        ["ng_run", "+a=1", "b c"],
        ["1"],
        ["tee", "log"],
        ["echo"],
        ["ng_test"],
        ["+limit=3"],
    ]


@pytest.mark.parametrize(
    "wrong", ["ng_collect", "ng_collect_rollouts +limt=3", "rollmill colect", "rollmill collect +limt=3"]
)
def test_what_is_wrong_is_found(wrong):
    with pytest.raises(AssertionError):
        check(wrong.split())
