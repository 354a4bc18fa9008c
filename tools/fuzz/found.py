"""Programs in text files: the graph as `ir.text` prints it, with the sizes, options and data that made it fail.

# what was wrong
how isa=sse threads=2 disable=fuse/row extras=weights
at n=3 m=2
data x0 whole 123
data i1 range 5 0 7
data x2 f32[3](1.0, 2.0, 3.0)
graph "…" { … }
"""

from __future__ import annotations

from rlx.ir.literal import Literal
from rlx.ir.text import parse_graph, print_graph, print_literal, read_literal
from rlx.runtime.session import Precision
from tools.fuzz.data import Recipe
from tools.fuzz.program import How, Program


def write(program: Program, what: str = "") -> str:
    """The program as text that `read` takes."""
    how = program.how
    lines = [f"# {line}" for line in what.splitlines()]
    words = [f"isa={how.isa}"] * bool(how.isa) + [f"threads={how.threads}"] * (how.threads != 1)
    words += [f"level={how.level}"] * (how.level != 2)
    words += ["clamps=1"] * how.clamps
    words += [f"disable={','.join(how.disable)}"] * bool(how.disable)
    words += [f"extras={','.join(how.extras)}"] * bool(how.extras)
    words += [f"common={','.join(how.common)}"] * bool(how.common)
    words += [f"precision={how.precision}"] * (how.precision != "f32")
    lines += ["how " + " ".join(words)] * bool(words)
    lines += ["at " + " ".join(f"{name}={size}" for name, size in b.items()) for b in program.bindings if b]
    for name, recipe in program.recipes.items():
        if recipe.array is not None:
            lines.append(f"data {name} {print_literal(Literal(recipe.array), 'full')}")
        elif recipe.low is not None:
            lines.append(f"data {name} range {recipe.seed} {recipe.low} {recipe.high}")
        else:
            lines.append(f"data {name} {recipe.kind} {recipe.seed}")
    return "\n".join([*lines, print_graph(program.graph, "full"), ""])


def read(text: str) -> Program:
    """The program that `write` wrote."""
    how, bindings, recipes = How(), [], {}
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("graph "))
    for line in lines[:start]:
        word, _, rest = line.partition(" ")
        if word == "how":
            fields = dict(part.split("=", 1) for part in rest.split())
            numbers = {key: int(fields[key]) for key in ("level", "threads") if key in fields}
            lists = {key: _names(fields.get(key)) for key in ("disable", "extras", "common")}
            precision: Precision = "f32_fast" if fields.get("precision") == "f32_fast" else "f32"
            how = How(fields.get("isa"), clamps="clamps" in fields, precision=precision, **numbers, **lists)
        elif word == "at":
            bindings.append({k: int(v) for k, v in (part.split("=") for part in rest.split())})
        elif word == "data":
            name, _, said_data = rest.partition(" ")
            recipes[name] = _recipe(said_data)
    return Program(parse_graph("\n".join(lines[start:])), recipes, bindings or [{}], how)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _recipe(text: str) -> Recipe:
    kind, _, rest = text.partition(" ")
    if "[" in kind:
        return Recipe("given", 0, array=read_literal(text).array)
    numbers = [int(part) for part in rest.split()]
    if kind == "range":
        return Recipe("whole", *numbers)
    return Recipe(kind, numbers[0])
