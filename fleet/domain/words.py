"""Figures as people say them."""


def duration(seconds: float) -> str:
    """ "45 s", "3 min 20 s", "5 h 12 min", "9 days"."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def counted(number: int, word: str) -> str:
    """ "1 node", "3 nodes", "2 copies"."""
    if number == 1:
        return f"1 {word}"
    return f"{number} {word[:-1]}ies" if word.endswith("y") else f"{number} {word}s"
