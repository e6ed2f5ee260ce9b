"""Compute capability from a card's name, for sources that do not tell it (nvidia-smi's XML). Unknown: None."""

import re

#: First match over the lower-case name wins. Values: NVIDIA's list of CUDA GPUs; newest from captures.
_RULES: tuple[tuple[str, str], ...] = (
    (r"gb10\b", "12.1"),
    (r"thor\b", "11.0"),
    (r"orin\b", "8.7"),
    (r"xavier\b", "7.2"),
    (r"g?b300\b", "10.3"),
    (r"g?b[12]00\b", "10.0"),
    (r"rtx pro \d{3,4}\w* blackwell|rtx 50[5-9]0\b", "12.0"),
    (r"gh200\b|h(?:20|100|200|800)\b", "9.0"),
    (r"l(?:2|4|20|40|40s)\b|rtx \d{3,4} (?:sff )?ada\b|rtx 40[5-9]0\b", "8.9"),
    (r"a(?:100|100x|800|30|30x)\b", "8.0"),
    (r"a(?:2|10|10g|10m|16|40)\b|rtx a\d{3,4}\b|rtx 30[5-9]0\b", "8.6"),
    (r"t4g?\b|quadro rtx \d{4}\b|titan rtx\b|rtx 20[678]0\b|gtx 16[35-6]0\b|t(?:400|500|550|600|1000|1200)\b", "7.5"),
    (r"v100[ds]?\b|gv100\b|titan v\b", "7.0"),
    (r"g?p100\b", "6.0"),
    (r"p4\b|p6\b|p40\b|gtx 10[5-8]0\b|gt 10[13]0\b|quadro p\d{3,4}\b|titan xp\b|titan x pascal\b", "6.1"),
    (r"m(?:4|6|10|40|60)\b|gtx 9[5-8]0\b", "5.2"),
    (r"k80\b", "3.7"),
)
_COMPILED = tuple((re.compile(rf"(?<![a-z0-9])(?:{rule})"), value) for rule, value in _RULES)


def from_name(name: str | None) -> str | None:
    """vGPU and MIG names carry their card's name, so they get its capability."""
    words = " ".join(re.findall(r"[a-z0-9]+", name.lower())) if name else ""
    return next((value for pattern, value in _COMPILED if pattern.search(words)), None)
