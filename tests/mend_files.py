"""Files of mends for tests."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

HEAD = '''\
"""A bug that a test has made up."""

from fuzzshard.mending import Edit, Promise, Public, Releases, trip

TITLE = "What a test has made up"
COMPONENT = "{component}"
CONTRACT = Promise("words", "place")
TORCH = Releases()
'''


def mend_file(folder: Path, slug: str, body: str, *, component: str = "fully_shard") -> Path:
    """A mend in a file of its own: what every one says, and ``body``."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{slug}.py"
    file.write_text(HEAD.format(component=component) + textwrap.dedent(body))
    return file


class _Patching(ast.NodeTransformer):
    """Has ``apply()`` patch what it assigns to; functions within it stay as they are."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.stmt]:
        (target,), value = node.targets, node.value
        if isinstance(target, ast.Name):
            return node
        if isinstance(target, ast.Attribute):
            return _patch(target.value, ast.Constant(target.attr), value)
        assert isinstance(target, ast.Tuple), "only attributes can be patched"
        if all(isinstance(each, ast.Name) for each in target.elts):
            return node
        assert isinstance(value, ast.Tuple)
        pairs = zip(target.elts, value.elts, strict=True)
        return [self.visit(ast.Assign([each], its, lineno=node.lineno)) for each, its in pairs]

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        assert isinstance(node.value, ast.Call)
        assert ast.unparse(node.value.func) == "setattr", "only attributes can be patched"
        return _patch(*node.value.args)


def _patch(*arguments: ast.expr) -> ast.Expr:
    return ast.Expr(ast.Call(ast.Name("patch"), [*arguments], []))


def planting_file(folder: Path, fault: Path) -> Path:
    """A mend that plants the ``fault`` of a file to preload, for as long as a case runs."""
    tree = ast.parse(fault.read_text())
    (apply,) = (
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "apply"
    )
    apply.args.args = [ast.arg("patch")]
    _Patching().generic_visit(apply)
    return mend_file(folder, fault.stem, ast.unparse(ast.fix_missing_locations(tree)))
