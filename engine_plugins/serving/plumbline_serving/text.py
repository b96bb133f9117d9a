"""What is done to the text of a prompt."""

from __future__ import annotations

import re
import unicodedata

# Unicode's control characters (category Cc) but tab, line feed and carriage return: C0 and DEL are single bytes of UTF-8, C1 two, the first
# of which is C2. With them go lone surrogates (Cs; their first byte would be ED), which are no text: a tokenizer fails on them.
_SINGLE = bytes([*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F])
_OTHERS = re.compile("[\x80-\x9f\ud800-\udfff]+")
# The blocks that hold the full-width forms: CJK Symbols and Punctuation (the ideographic space), and Halfwidth and Fullwidth Forms.
_FULL_WIDTH_BLOCKS = ((0x3000, 0x3040), (0xFF00, 0xFFF0))


def full_width_punctuation() -> dict[str, str]:
    """Return the full-width punctuation, symbols and space with their usual forms, from Unicode's own data.

    Those are what Unicode decomposes as `<wide>` and counts as punctuation, symbol or space: U+FF0C becomes a comma. Full-width letters and
    digits are left alone, and so is what has no other form, like U+3002, the ideographic full stop.
    """
    found = {}
    for first, behind in _FULL_WIDTH_BLOCKS:
        for character in map(chr, range(first, behind)):
            wide = unicodedata.decomposition(character).startswith("<wide>")
            if wide and unicodedata.category(character)[0] in "PSZ":
                found[character] = unicodedata.normalize("NFKC", character)
    return found


# U+FFE3, the full-width macron, decomposes further, to a space and a combining mark: then it is no single character, and stays.
_FULL_WIDTH = {wide: usual for wide, usual in full_width_punctuation().items() if len(usual) == 1}


def without_control_characters(text: str) -> str:
    """Return the text without control characters and lone surrogates; the same object where there are none."""
    # By way of bytes, which takes a quarter of a regular expression's time.
    raw = text.encode("utf-8", "surrogatepass")
    clean = raw.translate(None, _SINGLE)
    if len(clean) != len(raw):
        text = clean.decode("utf-8", "surrogatepass")
    if (b"\xc2" in clean or b"\xed" in clean) and _OTHERS.search(text):
        text = _OTHERS.sub("", text)
    return text


def with_usual_punctuation(text: str) -> str:
    """Return the text with full-width punctuation in its usual form; the same object where there is none."""
    if text.isascii():
        return text
    # Not str.translate, which looks every character up in a dictionary: searching for each form takes a tenth of the time.
    for wide, usual in _FULL_WIDTH.items():
        if wide in text:
            text = text.replace(wide, usual)
    return text
