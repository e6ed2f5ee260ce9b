"""XML text → element tree, for output of programs: nothing is fetched, entities are refused, size and depth are capped.

`xml.etree` alone would expand entities; so expat is driven here and feeds its tree builder.
"""

import re
from typing import Never
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

LARGEST_CHARACTERS = 8 * 1024 * 1024  # 8 cards with full clock lists are about 1 MiB
DEEPEST = 40
#: What XML 1.0 does not allow even escaped.
_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
#: nvidia-smi writes names of processes as they are.
_NAME = re.compile(r"(<process_name>)(.*?)(</process_name>)", re.DOTALL)


class XmlError(Exception):
    """Not well-formed, too big, or with entities."""


def read(text: str, root: str) -> Element:
    """The element `root` with what is in it. Lines before and after it (warnings) are not part of the XML."""
    if len(text) > LARGEST_CHARACTERS:
        raise XmlError(f"{len(text)} characters, {LARGEST_CHARACTERS} at most")
    end = text.rfind(f"</{root}>")
    starts = [at for mark in ("<?xml", "<!DOCTYPE", f"<{root}") if (at := text.find(mark)) >= 0]
    if end < 0 or not starts:
        raise XmlError(f"no complete <{root}>")
    text = _ILLEGAL.sub("�", text[min(starts) : end + len(root) + 3])
    try:
        return _build(text)
    except XmlError:
        escaped = _NAME.sub(lambda m: m.group(1) + _escape(m.group(2)) + m.group(3), text)
        if escaped == text:
            raise
        return _build(escaped)


def _build(text: str) -> Element:
    builder = TreeBuilder()
    parser = expat.ParserCreate()
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    parser.buffer_text = True
    depth = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > DEEPEST:
            raise XmlError(f"nested deeper than {DEEPEST}")
        builder.start(tag, attributes)

    def stop(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    def refuse(*_: object) -> Never:
        raise XmlError("entities are declared")

    parser.StartElementHandler = start
    parser.EndElementHandler = stop
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = refuse
    parser.UnparsedEntityDeclHandler = refuse
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise XmlError(str(error)) from None
    return builder.close()


def _escape(text: str) -> str:
    text = re.sub(r"&(?!(?:amp|lt|gt|quot|apos|#\d{1,7});)", "&amp;", text, flags=re.ASCII)
    return text.replace("<", "&lt;").replace(">", "&gt;")
