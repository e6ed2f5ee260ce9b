"""Statements are compiled once: the control plane asks the same three hundred questions again and again.

Compiling took two thirds of a schedule's time. Django's own compiler still makes every statement, once for each shape
of a query; its WHERE and the parameters, which differ from call to call, are compiled each time. A query of a kind
that is not known here for certain goes the whole way.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from django.core.exceptions import EmptyResultSet, FullResultSet
from django.db.models import Value
from django.db.models.expressions import Col
from django.db.models.functions import Now
from django.db.models.sql.compiler import SQLCompiler


class Statement:
    """What stands around the WHERE, and what the compiler knows of the columns."""

    __slots__ = ("after", "before", "converters", "known", "params")

    def __init__(self, before: str, after: str, params: tuple[Any, ...], compiler: Any) -> None:
        self.before, self.after, self.params = before, after, params
        self.known = {name: getattr(compiler, name) for name in _KNOWN}
        self.converters: Any = None


_KNOWN = ("select", "klass_info", "annotation_col_map", "col_count", "has_extra_select")
_ABSENT = ("combinator", "extra", "extra_select_mask", "extra_order_by", "explain_info", "distinct_fields", "subquery")
_STATEMENTS: dict[Any, Statement] = {}
_NEVER: set[Any] = set()


@contextlib.contextmanager
def compiled_once() -> Iterator[None]:
    """While this lasts."""
    with patch.object(SQLCompiler, "as_sql", _as_sql), patch.object(SQLCompiler, "get_converters", _get_converters):
        yield


_compile, _converters = SQLCompiler.as_sql, SQLCompiler.get_converters


def _as_sql(self: Any, with_limits: bool = True, with_col_aliases: bool = False) -> Any:
    shape = None if with_col_aliases or not with_limits else _shape(self)
    if shape is None or shape in _NEVER:
        return _compile(self, with_limits, with_col_aliases)
    statement = _STATEMENTS.get(shape)
    if statement is None:
        return _compile_and_keep(self, shape)
    self.__dict__.update(statement.known, statement=statement)
    where, params = _where(self)
    return f"{statement.before}{where}{statement.after}", (*statement.params, *params)


def _compile_and_keep(compiler: Any, shape: Any) -> Any:
    sql, params = _compile(compiler)
    where, own = _where(compiler)
    before, found, after = sql.rpartition(where) if where else (sql, "", "")
    others = params[: len(params) - len(own)]
    if (where and (not found or where in before)) or "%s" in after or (*others, *own) != params:
        _NEVER.add(shape)
    else:
        _STATEMENTS[shape] = Statement(before, after, others, compiler)
    return sql, params


def _where(compiler: Any) -> tuple[str, tuple[Any, ...]]:
    """Raises EmptyResultSet, as the compiler does, where nothing can be found."""
    try:
        sql, params = compiler.compile(compiler.query.where)
    except FullResultSet:
        return "", ()
    except EmptyResultSet:
        if compiler.elide_empty:
            raise
        return " WHERE 0 = 1", ()
    return f" WHERE {sql}", tuple(params)


def _get_converters(self: Any, expressions: Any) -> Any:
    statement = self.__dict__.get("statement")
    if statement is None:
        return _converters(self, expressions)
    if statement.converters is None:
        statement.converters = _converters(self, expressions)
    return statement.converters


def _shape(compiler: Any) -> Any:
    """Everything that decides what stands around the WHERE; None where that is not known for certain."""
    query = compiler.query
    if type(compiler) is not SQLCompiler or any(getattr(query, name) for name in _ABSENT):
        return None
    where = query.where
    if query.group_by is not None or query._filtered_relations:
        return None
    if where.contains_aggregate or where.contains_over_clause:
        return None
    added = []
    for name, expression in query.annotation_select.items():
        if type(expression) is Now:
            added.append((name, Now))
        elif type(expression) is Value:
            added.append((name, expression.value))
        else:
            return None
    if any(type(each) is not Col for each in query.select) or any(type(each) is not str for each in query.order_by):
        return None
    selected = query.selected and tuple((k, v if type(v) in (int, str) else None) for k, v in query.selected.items())
    return (
        query.model,
        tuple((each.alias, id(each.target)) for each in query.select),
        tuple(added),
        selected,
        query.values_select,
        query.default_cols,
        (frozenset(query.deferred_loading[0]), query.deferred_loading[1]),
        str(query.select_related),
        query.order_by,
        (query.default_ordering, query.standard_ordering, query.distinct, query.low_mark, query.high_mark),
        tuple(
            (alias, join.table_name, join.join_type, join.parent_alias, query.alias_refcount[alias] > 0)
            for alias, join in query.alias_map.items()
        ),
        not where,
        compiler.elide_empty,
    )
