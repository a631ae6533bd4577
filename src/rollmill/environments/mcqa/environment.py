"""Multiple-choice questions: which letter the final answer commits to, and whether it is the right one."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Self

import rollmill as rm
from rollmill.errors import suggestion
from rollmill.types import decode, encode


class Question(rm.Task):
    """A question with lettered options, one of which is right."""

    options: list[dict[str, str]]
    expected_answer: str
    grading_mode: str = "strict_single_letter_boxed"
    template_metadata: dict[str, Any] | None = None
    uuid: str | None = None


class MCQA(rm.Environment[Question]):
    """Nothing to act on: the final answer names one option in the form that the row asks for."""

    verification = "stateless"
    domain: ClassVar[str] = "knowledge"

    @classmethod
    @asynccontextmanager
    async def shared(cls, config: Mapping[str, Any]) -> AsyncIterator[Searcher]:
        async with Searcher() as searcher:
            yield searcher

    async def setup(self) -> None:
        self.options = Options(self.task.options)
        self.expected = self.options.letters.get(self.task.expected_answer.strip())
        if self.expected is None:
            known = ", ".join(sorted(set(self.options.letters.values())))
            raise rm.ConfigError(f"mcqa: expected_answer {self.task.expected_answer!r} is none of the options {known}")
        mode = self.task.grading_mode
        if mode not in MODES:
            hint = suggestion(mode, MODES)
            raise rm.ConfigError(f"mcqa: no grading_mode {mode!r}; there are {', '.join(MODES)}{hint}")

    async def verify(self, task: Question, response: rm.Response) -> dict[str, Any]:
        letter = await self._letter(response.output_text)
        right = letter == self.expected
        return {"reward": float(right), "extracted_answer": letter, "answered": int(letter is not None)}

    async def _letter(self, text: str) -> str | None:
        pattern = (self.task.template_metadata or {}).get("output_regex")
        if isinstance(pattern, str):
            found = await self._search(pattern, text)
            if found is not None:
                return self.options.named(found)
        return MODES[self.task.grading_mode](self.options, text)

    async def _search(self, pattern: str, text: str) -> str | None:
        if self.shared_value is not None:
            found: str | None = await self.shared_value.last(pattern, text)
            return found
        async with Searcher() as searcher:
            return await searcher.last(pattern, text)


# What an answer says.

_WRAPPER = re.compile(r"\\(?:text\w*|math\w+|mbox)\s*(?=\{)")
_QUOTES = " \"'\u201c\u201d\u2018\u2019"
_PADDING = _QUOTES + "\t\r\n\\$(){}[]"
_PUNCTUATION = ".,:;?"
_EMPHASIS = str.maketrans("", "", "*_`")
_LABEL_END = re.compile(r"[\s{}\]$]*(?:[:)]|[.\u2013\u2014-](?=[\s{}]|$)|(?<=\s)[\u2013\u2014-])")
_OTHER_LABEL = re.compile(r"(?<!\w)([^\W\d_])(?:\s*[:)]|[.-]\s+\S)")


class Options:
    """The options of one question, and which of them a piece of an answer names."""

    def __init__(self, options: Sequence[Mapping[str, str]]) -> None:
        pairs = [(letter, text) for option in options for letter, text in option.items()]
        self.letters: dict[str, str] = {}
        self._texts: dict[str, str | None] = {}
        for letter, text in pairs:
            if len(letter) != 1 or not letter.isalpha() or letter in self.letters:
                raise rm.ConfigError(f"mcqa: option {letter!r}: an option has one letter, and no two have the same")
            self.letters |= {letter.lower(): letter, letter.upper(): letter}
            said = _normal(text)
            self._texts[said] = None if said in self._texts else letter

    def named(self, said: str) -> str | None:
        """The option that is named by its letter or by its exact text."""
        return self.letter(said) or self.text(said)

    def text(self, said: str) -> str | None:
        """The one option that has this text, whatever its case, spacing and final punctuation."""
        normal = _normal(said)
        return self._texts.get(normal) if normal else None

    def letter(self, said: str) -> str | None:
        """The option that is named by its letter, alone ("B") or as a label ("B: Rome")."""
        core = _WRAPPER.sub("", said).strip(_PADDING)
        return self.letters.get(core.rstrip(_PADDING + _PUNCTUATION)) or self._label(core)

    def _label(self, core: str) -> str | None:
        letter, end = self.letters.get(core[:1]), _LABEL_END.match(core, 1)
        if letter is None or end is None:
            return None
        # "E. coli" and "A-" may be the text of an option rather than a label; and an option may speak of other letters.
        option, rest = self.text(core), core[end.end() :]
        if letter in (option, self.text(rest)):
            return letter
        return letter if option is None and not self._names_others(rest, letter) else None

    def _names_others(self, rest: str, letter: str) -> bool:
        labels = {self.letters.get(label) for label in _OTHER_LABEL.findall(rest)}
        words = [word for word in re.findall(r"\w+", rest) if word.lower() not in ("and", "or")]
        return bool(labels - {None, letter}) or (bool(words) and all(word in self.letters for word in words))


def _normal(text: str) -> str:
    """A text without what two spellings of the same option differ in."""
    bare = re.sub(r"[{}$]|\\(?=[%$&#_{} ])", "", _WRAPPER.sub("", text))
    return " ".join(bare.casefold().split()).strip(_QUOTES).rstrip(_PUNCTUATION + " ")


# Where an answer says it: the grading modes.

_BOX = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"[{}]")
_ANSWER = re.compile(r"(?<![^\W_])answer[ \t]*:", re.IGNORECASE)
_ANSWER_MD = re.compile(r"(?<![^\W_])answer[ \t*_`]*:", re.IGNORECASE)


def last_box(text: str) -> str:
    r"""What the last `\boxed{}` holds, inner braces included; nothing where there is none, or it is never closed."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return ""
    start, depth = boxes[-1].end(), 1
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[start : brace.start()]
    return ""


def _after(pattern: re.Pattern[str], text: str) -> list[str]:
    """What follows each mark, up to the next one or the end of the line; the last one first."""
    marks = list(pattern.finditer(text))
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    return [text[mark.end() : end].partition("\n")[0] for mark, end in zip(marks, ends, strict=False)][::-1]


def strict_boxed(options: Options, text: str) -> str | None:
    return options.letter(last_box(text).translate(_EMPHASIS))


def lenient_boxed(options: Options, text: str) -> str | None:
    return strict_boxed(options, text) or options.text(last_box(text))


def answer_colon(options: Options, text: str) -> str | None:
    return next((options.named(said) for said in _after(_ANSWER, text)), None)


def answer_colon_md(options: Options, text: str) -> str | None:
    named = (_named_md(options, said) for said in _after(_ANSWER_MD, text))
    return next((letter for letter in named if letter), None)


def _named_md(options: Options, said: str) -> str | None:
    return options.letter(said.translate(_EMPHASIS)) or options.text(said.strip("*_` \t\r"))


MODES: dict[str, Callable[[Options, str], str | None]] = {
    "strict_single_letter_boxed": strict_boxed,
    "lenient_boxed": lenient_boxed,
    "lenient_answer_colon": answer_colon,
    "lenient_answer_colon_md": answer_colon_md,
}


# The regular expressions of rows.

TAIL = 20_000
"""How many characters of the answer, counted from its end, a row's `output_regex` sees."""

_SEARCHING = """
import json, re, resource, signal, sys

def stop(*_):
    raise TimeoutError

def last(pattern, text):
    found = None
    for found in re.finditer(pattern, text, re.IGNORECASE):
        pass
    return found and ((found.re.groups and found[1]) or found[0])[:2000]

signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGPROF, stop)
resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29))
for line in sys.stdin.buffer:
    signal.setitimer(signal.ITIMER_PROF, 0.25)
    try:
        said = last(*json.loads(line))
    except (re.error, TimeoutError, RecursionError, OverflowError, MemoryError):
        said = None
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps(said), flush=True)
"""


class Searcher:
    """Runs the regular expressions of rows in a process of its own.

    Python's `re` cannot be stopped from another thread, and some patterns take longer than the universe has time. There
    each search has a quarter of a second of processor time, so that a busy machine changes no grade.
    """

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._end()

    async def last(self, pattern: str, text: str) -> str | None:
        """The last match in the tail of a text, its first group if it has one.

        None without a match, and where the pattern does not compile or does not finish.
        """
        async with self._one_at_a_time:
            try:
                return await self._ask(encode((pattern, text[-TAIL:])))
            except BaseException:
                # Interrupted between a question and its answer: the next one must not read this answer.
                await self._end()
                raise

    async def _ask(self, question: bytes) -> str | None:
        if self._process is None:
            code = ("-I", "-S", "-c", _SEARCHING)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *code, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
            )
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018
        self._process.stdin.write(question + b"\n")
        await self._process.stdin.drain()
        said = await self._process.stdout.readline()
        if not said:
            raise RuntimeError("the process that searches for output_regex has died")
        return decode(said, type=str | None)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
