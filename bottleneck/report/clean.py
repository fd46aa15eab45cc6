"""Stage 4, first step of every renderer: text from traces made safe to show, whatever it holds."""

_SPACES = str.maketrans(dict.fromkeys("\u00a0\u2007\u202f", " "))


def clean(text: str, limit: int = 200) -> str:
    r"""The text with everything unprintable as a visible escape (``\x1b``, ``\u202e``), cut at ``limit`` characters.

    Unprintable is what Unicode calls control, format, surrogate, private, unassigned or separator: that covers the
    terminal's escape sequences, line breaks, bidirectional overrides, zero-width characters and lone surrogates.
    """
    shown = text[: limit + 1].translate(_SPACES)
    if not shown.isprintable():
        shown = "".join(character if character.isprintable() else _escape(ord(character)) for character in shown)
    return shown if len(shown) <= limit else shown[: max(limit - 1, 0)] + "…"


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
