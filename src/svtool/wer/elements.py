"""HTML elements out of Python: everything that is not markup yet is escaped, so that no text can become markup.

Knows HTML's syntax. Knows nothing of reports.
"""

from __future__ import annotations

import unicodedata
from html import escape

_NO_END = frozenset({"meta", "link", "br"})
# Control Pictures of Unicode: a text with a backspace in it must look odd, not vanish
_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: 0x2421}


class Html(str):
    """Markup that is safe to put on a page as it is."""

    __slots__ = ()


Child = str | None  # a `str` that is not Html is text


def text(value: str) -> Html:
    return Html(escape(visible(value), quote=False))


def visible(value: str) -> str:
    """Nothing that hides, reorders or cannot be written: controls and lone surrogates are shown as signs."""
    if value.isascii() and value.isprintable():
        return value
    return "".join(map(_visible, value.translate(_PICTURES)))


def _visible(char: str) -> str:
    if char in "\t\n\u200c\u200d":  # the joiners are spelling in Indic and Arabic scripts
        return char
    return f"[U+{ord(char):04X}]" if unicodedata.category(char) in ("Cc", "Cf", "Cs") else char


def element(name: str, /, *children: Child, **attributes: str | bool | None) -> Html:
    """`class_` is `class`, `data_name` is `data-name`; True stands alone, None and False are left out."""
    said = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _NO_END:
        return Html(f"<{name}{said}>")
    return Html(f"<{name}{said}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Html:
    return Html("".join(child if isinstance(child, Html) else text(child) for child in children if child))


def _attribute(key: str, value: str | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(visible(value))}"'
