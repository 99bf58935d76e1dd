"""Small faults of source code: their places, and the code of a function with such a fault.

A mutant changes one place in the body of one function or method. Texts for people, annotations,
defaults, decorators and code outside of functions are left alone.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAMES = {"min": "max", "minimum": "maximum", "any": "all"}
NAMES |= {after: before for before, after in NAMES.items()}
TEXTS = (ast.JoinedStr, ast.Raise)
BLOCKS = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Mutant:
    """One fault: the ``number``-th place of a module, in the function ``name``."""

    path: str
    number: int
    name: str
    lines: tuple[int, ...]  # the lines that show whether a test reaches it
    change: str

    @property
    def key(self) -> str:
        """The name of a mutant in the results, as long as its line stays where it is."""
        return f"{self.path}:{self.lines[0]} [{self.number}] {self.change}"


def mutants_of(path: str, source: str) -> list[Mutant]:
    """All faults of a module."""
    return [
        Mutant(path, number, name, lines, change)
        for number, (name, lines, change) in enumerate(_Faults(source).listed)
    ]


def drawn(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """A uniform sample of ``count`` mutants; a smaller sample is the begin of a larger one."""
    shuffled = list(mutants)
    random.Random(seed).shuffle(shuffled)
    return shuffled[:count]


def code_of(mutant: Mutant, root: Path) -> CodeType:
    """The code of the function that has the fault.

    Raises LookupError where the fault leaves no such function.
    """
    source = (root / mutant.path).read_text("utf-8")
    tree = _Faults(source, mutant.number).tree
    return functions_in(compile(tree, str(root / mutant.path), "exec"))[mutant.name]


def functions_in(code: CodeType) -> dict[str, CodeType]:
    """The code objects of functions and methods of a module, by qualified name; nested functions
    are part of their outermost function.
    """
    inside = [value for value in code.co_consts if isinstance(value, CodeType)]
    named = {value.co_qualname: value for value in inside if "<" not in value.co_name}
    for value in inside:
        if not value.co_flags & 1:  # a class body: its locals are not optimised
            named |= functions_in(value)
    return named


class _Faults(ast.NodeTransformer):
    """Lists the places of faults in a module, and applies the fault at the ``wanted`` place."""

    def __init__(self, source: str, wanted: int = -1) -> None:
        self.wanted, self.names = wanted, list[str]()
        self.listed: list[tuple[str, tuple[int, ...], str]] = []
        self.depth, self.returns, self.statement = 0, "", 0
        self.tree = ast.fix_missing_locations(self.visit(ast.parse(source)))

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.names.append(node.name)
        node.body = [self.visit(one) for one in node.body]
        self.names.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        before, self.returns = self.returns, ast.unparse(node.returns) if node.returns else ""
        self.depth += 1
        if self.depth == 1:
            self.names.append(node.name)
        node.body = [self.visit(one) for one in node.body]
        if self.depth == 1:
            self.names.pop()
        self.depth, self.returns = self.depth - 1, before
        return node

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, BLOCKS):
            return super().visit(node)
        if not self.depth:
            return self.generic_visit(node) if isinstance(node, ast.Module) else node
        if isinstance(node, ast.stmt):
            self.statement = node.lineno
        changed = next((new for new in variants(node, self.returns) if self.takes(node, new)), None)
        if changed is not None:
            return ast.copy_location(changed, node)
        if isinstance(node, TEXTS):
            return node
        if isinstance(node, ast.AnnAssign):
            node.value = node.value and self.visit(node.value)
            return node
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "cast":
            node.args[1] = self.visit(node.args[1])
            return node
        return self.generic_visit(node)

    def takes(self, old: ast.AST, new: ast.AST) -> bool:
        number = len(self.listed)
        header = old.test if isinstance(old, ast.If | ast.While | ast.IfExp) else old
        lines = dict.fromkeys((self.statement, *range(header.lineno, header.end_lineno + 1)))
        shown = new.test if header is not old else new
        change = f"{_short(header)} -> {_short(shown)}"
        self.listed.append((".".join(self.names), tuple(lines), change))
        return number == self.wanted


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def variants(node: ast.AST, returns: str) -> Iterator[ast.AST]:
    """Nodes that may replace a node, in a function of this return type."""
    yield from _operators(node)
    yield from _values(node)
    yield from _statements(node, returns)


def _with(node: ast.AST, **values: object) -> ast.AST:
    old = {name: getattr(node, name, None) for name in node._fields}
    return ast.copy_location(type(node)(**{**old, **values}), node)


def _operators(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[first, *others]) if type(first) in SWAPS:
            yield _with(node, ops=[SWAPS[type(first)](), *others])
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign() if type(node.op) in SWAPS:
            yield _with(node, op=SWAPS[type(node.op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand


def _values(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Name(id=name) if name in NAMES:
            yield _with(node, id=NAMES[name])
        case ast.Attribute(attr=name) if name in NAMES:
            yield _with(node, attr=NAMES[name])
        case ast.Slice(lower=lower, upper=upper):
            for name, bound in ("lower", lower), ("upper", upper):
                if bound is not None and not isinstance(bound, ast.Constant):
                    yield _with(node, **{name: ast.BinOp(bound, ast.Add(), ast.Constant(1))})


def _statements(node: ast.AST, returns: str) -> Iterator[ast.AST]:
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield _with(node, value=_other(value, returns))
        case ast.Break():
            yield ast.Continue()
        case ast.Continue() | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield ast.Pass()
        case ast.Expr(value=value) if ast.unparse(value).startswith("super()"):
            # A statement without effect that keeps the cell which ``super`` needs.
            yield ast.Expr(ast.Name("__class__", ast.Load()))
        case ast.Expr(value=value) if not isinstance(value, ast.Constant):
            yield ast.Pass()
        case ast.Assign(targets=[*targets]) if all(map(_is_stored, targets)):
            yield ast.Pass()


def _other(value: ast.expr, returns: str) -> ast.expr:
    """A different value for a function of this return type to return."""
    if returns == "bool":
        return ast.UnaryOp(ast.Not(), value)
    if returns in ("int", "float", "Ints", "Floats"):
        return ast.BinOp(value, ast.Add(), ast.Constant(1))
    return ast.Constant(None)


def _is_stored(target: ast.AST) -> bool:
    """Whether an assignment binds no local name, so that it can be dropped."""
    if isinstance(target, ast.Tuple):
        return all(map(_is_stored, target.elts))
    return isinstance(target, ast.Attribute | ast.Subscript)
