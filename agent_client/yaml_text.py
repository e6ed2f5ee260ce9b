"""YAML that people wrote, read with bounds; what is wrong with it is one sentence with a line and a column."""

from pathlib import Path
from typing import Any

import yaml

from agent_client.plain_data import flaw, read_at_most

MOST_BYTES, MOST_DEPTH, MOST_VALUES = 1_000_000, 50, 200_000


class UnreadableYaml(ValueError):
    """cannot read it as YAML; the text says where."""


def read_yaml_file(path: Path) -> Any:
    """As read_yaml. Raises OSError, too."""
    try:
        data = read_at_most(path, MOST_BYTES)
    except ValueError as error:
        raise UnreadableYaml(str(error)) from None
    return read_yaml(data)


def read_yaml(text: str | bytes, *, most_bytes: int = MOST_BYTES) -> Any:
    """The plain data of one document, as it can be stored. JSON is YAML, too. Raises UnreadableYaml."""
    size = len(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
    if size > most_bytes:
        raise UnreadableYaml(f"it has {size:,} bytes; {most_bytes:,} are allowed")
    try:
        loader = _Loader(text.decode() if isinstance(text, bytes) else text)
        found = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        raise UnreadableYaml(_where(error) + (error.problem or error.context or "it is not YAML")) from None
    except yaml.reader.ReaderError as error:
        raise UnreadableYaml(f"character {error.position + 1} is not allowed in YAML") from None
    except UnicodeDecodeError as error:
        raise UnreadableYaml(f"byte {error.start + 1} is not UTF-8") from None
    except (yaml.YAMLError, ValueError) as error:  # a date or a number that is none
        raise UnreadableYaml(str(error).split("\n", 1)[0][:200]) from None
    if told := flaw(found):
        raise UnreadableYaml(told)
    return found


def _where(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""


class _Loader(yaml.SafeLoader):
    """Refuses what would cost much for a small file, and keys that stand there twice, of which the last would win."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark = self.peek_event().start_mark
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise _refused(mark, f"it is nested more than {MOST_DEPTH} deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None:
            _count(node, {})
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """PyYAML's own makers fall over a value that is not what its tag says, such as `!!bool x`."""
        try:
            return super().construct_object(node, deep=deep)
        except (LookupError, AttributeError, TypeError, ArithmeticError, ValueError) as error:
            kind = node.tag.rpartition(":")[2]
            why = f": {str(error).split(';', 1)[0][:100]}" if isinstance(error, ValueError) else ""
            raise _refused(node.start_mark, f"it is no {kind}{why}") from None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
                continue
            if (key.tag, key.value) in seen:
                raise _refused(key.start_mark, f"`{key.value[:80]}` stands there twice")
            seen.add((key.tag, key.value))
        return dict(super().construct_mapping(node, deep=deep))


def _count(node: Any, known: dict[int, int]) -> int:
    """How many values it stands for: an anchor counts wherever it is used."""
    if id(node) in known:
        if known[id(node)] < 0:
            raise _refused(node.start_mark, "it holds itself")
        return known[id(node)]
    known[id(node)] = -1
    total = 1
    if not isinstance(node, yaml.ScalarNode):
        for each in node.value:
            total += sum(_count(one, known) for one in (each if isinstance(each, tuple) else (each,)))
    if total > MOST_VALUES:
        raise _refused(node.start_mark, f"it stands for more than {MOST_VALUES:,} values")
    known[id(node)] = total
    return total


def _refused(mark: Any, text: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(problem=text, problem_mark=mark)
