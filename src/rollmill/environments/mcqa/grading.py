"""Which option an answer names: the grading modes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import rollmill as rm

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
        words = {self.letters.get(word) for word in re.findall(r"\w+", rest) if word.lower() not in ("and", "or")}
        return bool(labels - {None, letter}) or (None not in words and bool(words - {letter}))


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
