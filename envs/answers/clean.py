r"""One spelling for what can be spelled in many ways: `plain` turns Unicode into ASCII and LaTeX commands, `clean` unwraps and normalises LaTeX.

Neither changes what a text means, and both take time linear in its length (`clean` times the depth of its wrappers).
After `clean`, fractions are `\frac{a}{b}`, roots `\sqrt{a}`, products `*`, degrees `^\circ`, and a dollar sign means money.
"""

from __future__ import annotations

import re
import unicodedata

_SIGNS = {
    **dict.fromkeys("\u2212\u2013\u2014\u2010\u2011\ufe63", "-"),
    **dict.fromkeys("\u00b7\u22c5\u2219\u00d7", r"\times "),
    **dict.fromkeys("\u00f7\u2215\u2044", "/"),
    **dict.fromkeys("\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad", ""),
    **dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003\u2005\u2006\u2007\u2008\u200a\u3000", " "),
    **dict.fromkeys("\u2018\u2019\u2032", "'"),
    **dict.fromkeys("\u201c\u201d", '"'),
    **dict.fromkeys("\u03c0\U0001d70b", r"\pi "),
    **dict.fromkeys("\u00b0\u00ba", r"^\circ "),
    "\u2205": r"\emptyset ",
    "\u2264": "<=",
    "\u2265": ">=",
    "\u2260": "!=",
    "\u221e": r"\infty ",
    "\u221a": r"\sqrt ",
    "\u222a": r"\cup ",
    "\u2208": r"\in ",
    "\u00b1": r"\pm ",
    "\u2026": "...",
    "\u3002": ".",
    "\u3001": ",",
    "\u066a": "%",
    "\u066b": ".",
    "\u066c": ",",
}
_RAISED = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b\u207a\u207f", "0123456789-+n")
_ROOTED = re.compile("\u221a\\s?([0-9]+|[A-Za-z])")
_RAISED_RUN = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207b\u207a\u207f]+")

_WRAPPER = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt|bb|cal|normal)|mbox|hbox|operatorname\*?|emph|boldsymbol|bm|boxed|fbox|underline)\s*\{([^{}]*)\}")
_COLOUR = re.compile(r"\\(?:text)?color(?:box)?\s*(?:\[[A-Za-z]*\])?\s*\{[^{}]*\}")
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|scriptstyle|limits|nolimits|bf|rm|it)(?![A-Za-z])\s?")
_SPACING = re.compile(r"(\\\\)|\\!|\\[,;:> ]|\\q?quad(?![A-Za-z])|~|\s+")
_FRACTION = re.compile(r"\\[dtc]?frac(?![A-Za-z])\s*")
_ROOT = re.compile(r"\\sqrt(?![A-Za-z])\s*(?:([0-9A-Za-z])|\(([^()]*)\))|(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)")
_COMMANDS = {
    **dict.fromkeys(("times", "cdot", "ast"), "*"),
    **dict.fromkeys(("leq", "le", "leqslant"), "<="),
    **dict.fromkeys(("geq", "ge", "geqslant"), ">="),
    **dict.fromkeys(("neq", "ne"), "!="),
    **dict.fromkeys(("lt",), "<"),
    **dict.fromkeys(("gt",), ">"),
    **dict.fromkeys(("lbrace",), r"\{"),
    **dict.fromkeys(("rbrace",), r"\}"),
    **dict.fromkeys(("varnothing",), r"\emptyset "),
    **dict.fromkeys(("div",), "/"),
    **dict.fromkeys(("ldots", "dots", "cdots"), "..."),
    **dict.fromkeys(("degree",), r"^\circ "),
    **dict.fromkeys(("lvert", "rvert", "vert"), "|"),
    **dict.fromkeys(("lor",), " or "),
    **dict.fromkeys(("euro",), "\u20ac"),
}
_COMMAND = re.compile(r"\\(" + "|".join(sorted(_COMMANDS, key=len, reverse=True)) + r")(?![A-Za-z])\s*")
_POWER = re.compile(r"(?<=[0-9A-Za-z)}])\s?\*\*\s?(?=[0-9A-Za-z({-])")
_EDGES = " \t\r\n*_`\"'"
_MONEY = "\ue000"  # stands for a dollar sign that means money while the others, which only begin and end mathematics, are dropped
_PRICE = re.compile(r"[+-]?\$\s?[+-]?\.?[0-9]")


def plain(text: str) -> str:
    """`text` with digits of any script, full-width forms and mathematical signs in ASCII; other letters stay."""
    if text.isascii():
        return text
    text = _RAISED_RUN.sub(lambda run: "^{" + run.group().translate(_RAISED) + "}", text)
    text = _ROOTED.sub(r"\\sqrt{\1}", text)
    return text.translate({ord(sign): _ascii(sign) for sign in set(text) if ord(sign) > 127})


def _ascii(sign: str) -> str:
    if sign in _SIGNS:
        return _SIGNS[sign]
    if sign.isdecimal():
        return str(unicodedata.decimal(sign))
    if "\uff01" <= sign <= "\uff5e":
        return chr(ord(sign) - 0xFEE0)
    if unicodedata.category(sign) == "No" and "\u2044" in unicodedata.normalize("NFKC", sign):  # one half, and so on
        return " " + unicodedata.normalize("NFKC", sign).replace("\u2044", "/") + " "
    return sign


def clean(text: str) -> str:
    """The answer `text`, which `plain` has been over, without wrappers, delimiters, spacing commands and closing punctuation."""
    text = _money(trim(text).replace(r"\$", _MONEY)).replace(_MONEY, "$")
    text = _SPACING.sub(lambda found: found.group(1) or ("" if found.group() == r"\!" else " "), text)
    text = re.sub(r"\\[()\[\]]", " ", text)  # the delimiters of mathematics within prose
    text = _SIZES.sub("", _COLOUR.sub("", text)).replace("{,}", ",").replace("{bmatrix}", "{pmatrix}").replace(r"\%", "%")
    text = _POWER.sub("^", text).replace("**", "")  # Python's power, or emphasis
    while (unwrapped := _WRAPPER.sub(r" \1 ", text)) != text:
        text = unwrapped
    text = _COMMAND.sub(lambda found: _COMMANDS[found.group(1)], text)
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?", r"^\\circ ", text)
    text = _ROOT.sub(lambda found: r"\sqrt{" + next(part for part in found.groups() if part is not None) + "}", text)
    text = re.sub(r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi", text)
    text = re.sub(r"(?i)(?<![A-Za-z\\])infinity(?![A-Za-z])", r"\\infty", text)
    return trim(re.sub(r" ?\^ ?", "^", re.sub(r" +", " ", fractions(text))))


def trim(text: str) -> str:
    """Without what stands around an answer but says nothing: quotes, emphasis, closing punctuation."""
    before = None
    while text != before:
        before = text
        text = text.strip(_EDGES).rstrip(".,;:?")
    return text[:-1].rstrip() if text.endswith("\\") else text


def fractions(text: str) -> str:
    r"""`text` with every `\dfrac`, `\tfrac`, `\frac12`, `\frac1{72}` written as `\frac{a}{b}`; one that has no two parts is left as it is."""
    pieces, at = [], 0
    for found in _FRACTION.finditer(text):
        if found.start() < at:
            continue
        above = _argument(text, found.end())
        below = _argument(text, above[1]) if above else None
        if below:
            pieces += [text[at : found.start()], r"\frac{", fractions(above[0]), "}{", fractions(below[0]), "}"]
            at = below[1]
    return "".join([*pieces, text[at:]])


def _argument(text: str, at: int) -> tuple[str, int] | None:
    """What a LaTeX command at `at` takes, and where that ends: a group or one letter or digit."""
    while text[at : at + 1] == " ":
        at += 1
    if text[at : at + 1] == "{":
        end = closing(text, at)
        return None if end is None else (text[at + 1 : end].strip(), end + 1)
    found = re.compile(r"\\[A-Za-z]+|[0-9A-Za-z]").match(text, at)
    return (found.group(), found.end()) if found else None


def closing(text: str, at: int) -> int | None:
    """Where the brace that opens at `at` closes; escaped braces do not count."""
    depth = 0
    for found in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, at):
        depth += {"{": 1, "}": -1}.get(found.group(), 0)
        if depth == 0:
            return found.start()
    return None


def _money(text: str) -> str:
    stripped = text.strip(_EDGES)
    if text.count("$") == 1 and _PRICE.match(stripped):
        return stripped.replace("$", _MONEY)
    return text.replace("$", " ")
