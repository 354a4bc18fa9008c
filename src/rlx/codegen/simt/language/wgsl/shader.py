"""The whole text of a shader: bindings, the functions that it calls, and the entry point around a kernel's lines."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.codegen.simt.code import WORKGROUP, Binding, Code, Record
from rlx.codegen.simt.language.wgsl import library
from rlx.codegen.simt.language.wgsl import small_floats as narrow

SUBGROUP_SIZE = "subgroup_size"
"""A parameter of entry points whose lanes exchange values within subgroups."""
FUNCTIONS = {**library.FUNCTIONS, **narrow.FUNCTIONS}


def assemble(
    code: Code, record: Record, bindings: Sequence[Binding], comment: str, positions_a_group: int = WORKGROUP
) -> str:
    """The whole shader around the lines of its entry point, in which `position` is the invocation's, or its group's."""
    place = "group.y * groups.x + group.x"
    if positions_a_group > 1:
        place = f"({place}) * {positions_a_group}u + lane"
    native = any(binding.element == "f16" for binding in bindings)
    functions_here = FUNCTIONS | narrow.NATIVE if native else FUNCTIONS
    head = [*(["enable f16;"] if native else []), f"// {comment}"]
    head += [f"@group(0) @binding(0) var<uniform> record: array<vec4<i32>, {record.quads}>;"]
    for number, binding in enumerate(bindings):
        access = "read_write" if binding.writable else "read"
        head.append(
            f"@group(0) @binding({number + 1}) var<storage, {access}> memory{number}: array<{binding.element}>;"
        )
    shared = code.shared.items()
    head += [f"var<workgroup> {name}: array<{element}, {count}>;" for name, (element, count) in shared]
    size = (
        f", @builtin({SUBGROUP_SIZE}) {SUBGROUP_SIZE}: u32" if any(SUBGROUP_SIZE in line for line in code.lines) else ""
    )
    entry = [
        f"@compute @workgroup_size({WORKGROUP})",
        "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,",
        f"        @builtin(local_invocation_index) lane: u32{size}) {{",
        f"  let position = i32({place});",
    ]
    body = "\n".join(code.lines)
    functions = library.closure(library.called(body, functions_here), functions_here)
    return "\n".join([*head, "", *functions, "", *entry, body, "}", ""])
