"""Modules import on every system: what only some have is asked for where it is used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "rlx"
FILES = sorted(SOURCE.rglob("*.py"))
OF_SOME_SYSTEMS = {"fcntl", "grp", "msvcrt", "posix", "pty", "pwd", "readline", "resource", "termios", "tty", "winreg"}
ATTRIBUTES = {
    "os": {"fork", "getuid", "geteuid", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "sysconf",
           "uname"},
    "signal": {"SIGALRM", "SIGKILL", "SIGUSR1", "setitimer", "pthread_sigmask"},
    "mmap": {"MAP_PRIVATE", "MAP_SHARED", "PROT_READ"},
    "ctypes": {"WinDLL", "windll", "wintypes"},
    "time": {"clock_gettime", "tzset"},
    "select": {"epoll", "poll"},
}  # fmt: skip


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported: bodies of functions do not, nor what stands behind a question
    (`if hasattr(os, …)`, `if sys.platform …`, `try`)."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for decorator in getattr(child, "decorator_list", []):
                yield from at_import(decorator)
            continue
        if isinstance(child, (ast.If, ast.IfExp, ast.Try)):
            continue
        yield child
        yield from at_import(child)


def needs(tree: ast.AST) -> list[str]:
    """Modules and functions of some systems that an import of the module needs."""
    found = []
    for node in at_import(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] in OF_SOME_SYSTEMS]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = ATTRIBUTES.get(node.module or "", set())
            found += [f"{node.module}.{alias.name}" for alias in node.names if alias.name in names]
            found += [str(node.module)] * (str(node.module).partition(".")[0] in OF_SOME_SYSTEMS)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found += [f"{node.value.id}.{node.attr}"] * (node.attr in ATTRIBUTES.get(node.value.id, ()))
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_module_imports_on_every_system(file: Path) -> None:
    assert not needs(ast.parse(file.read_text(encoding="utf-8")))


def test_the_scan_finds_what_it_looks_for() -> None:
    bad = {
        "import fcntl": ["fcntl"], "from resource import getrusage": ["resource"], "from os import fork": ["os.fork"],
        "import os\nN = len(os.sched_getaffinity(0))": ["os.sched_getaffinity"],
        "import os\nclass A:\n    n = os.getuid()": ["os.getuid"],
        "import os\nos.register_at_fork(before=print)": ["os.register_at_fork"],
        "import signal\n@wrap(signal.SIGALRM)\ndef f(): ...": ["signal.SIGALRM"],
    }  # fmt: skip
    for text, expected in bad.items():
        assert needs(ast.parse(text)) == expected, text
    good = ("def f():\n    import fcntl", "import os\nif hasattr(os, 'fork'):\n    os.fork()", "import os\nos.getpid()")
    for text in good:
        assert not needs(ast.parse(text)), text
