"""Functions in WGSL that instructions call: 64-bit integers out of 32-bit words, exact remainders, saturating casts.

A shader gets those that it uses, and what these use. 64-bit integers are `vec2<u32>`, low word first. NaN is told by
its bits, because compilers for shaders may assume that there is none; `%` is not used on numbers that may be negative,
because GLSL, which some drivers get, does not define it there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_SOURCE = """
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

fn float_min(a: f32, b: f32) -> f32 { return select(b, a, a < b || is_nan(a)); }

fn float_max(a: f32, b: f32) -> f32 { return select(b, a, b < a || is_nan(a)); }

fn copy_sign(x: f32, y: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(y) & 0x80000000u));
}

fn float_rem(x: f32, y: f32) -> f32 {
  let sign = bitcast<u32>(x) & 0x80000000u;
  var a = bitcast<u32>(x) & 0x7fffffffu;
  var b = bitcast<u32>(y) & 0x7fffffffu;
  if (b == 0u || a >= 0x7f800000u || b > 0x7f800000u) { return bitcast<f32>(a | 0x7fc00000u); }
  if (a < b) { return x; }
  var e = i32(a >> 23u);
  var f = i32(b >> 23u);
  a = (a & 0x7fffffu) | select(0u, 0x800000u, e > 0);
  b = (b & 0x7fffffu) | select(0u, 0x800000u, f > 0);
  let raise_a = countLeadingZeros(a) - 8u;
  let raise_b = countLeadingZeros(b) - 8u;
  a = a << raise_a;
  b = b << raise_b;
  e = max(e, 1) - i32(raise_a);
  f = max(f, 1) - i32(raise_b);
  while (e > f) {
    if (a >= b) { a = a - b; }
    a = a << 1u;
    e = e - 1;
  }
  if (a >= b) { a = a - b; }
  if (a == 0u) { return bitcast<f32>(sign); }
  let s = countLeadingZeros(a) - 8u;
  a = a << s;
  e = e - i32(s);
  if (e > 0) { return bitcast<f32>(sign | (a - 0x800000u) | (u32(e) << 23u)); }
  return bitcast<f32>(sign | (a >> u32(1 - e)));
}

fn float_to_i32(x: f32) -> i32 {
  if (is_nan(x)) { return 0i; }
  if (x >= 2147483648.0f) { return 2147483647i; }
  if (x < -2147483648.0f) { return i32(-2147483648); }
  return i32(x);
}

fn float_to_u32(x: f32) -> u32 {
  if (is_nan(x) || x <= 0.0f) { return 0u; }
  if (x >= 4294967296.0f) { return 4294967295u; }
  return u32(x);
}

fn int_div(a: i32, b: i32) -> i32 {
  if (b == 0i) { return 0i; }
  if (b == -1i) { return bitcast<i32>(0u - bitcast<u32>(a)); }
  return a / b;
}

fn int_rem(a: i32, b: i32) -> i32 {
  if (b == 0i || b == -1i) { return 0i; }
  return a - a / b * b;
}

fn uint_div(a: u32, b: u32) -> u32 {
  if (b == 0u) { return 0u; }
  return a / b;
}

fn uint_rem(a: u32, b: u32) -> u32 {
  if (b == 0u) { return 0u; }
  return a % b;
}

fn widen_i32(x: i32) -> vec2<u32> { return vec2<u32>(bitcast<u32>(x), bitcast<u32>(x >> 31u)); }

fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn neg64(a: vec2<u32>) -> vec2<u32> { return add64(~a, vec2<u32>(1u, 0u)); }

fn sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn mul64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let a0 = a.x & 0xffffu;
  let a1 = a.x >> 16u;
  let b0 = b.x & 0xffffu;
  let b1 = b.x >> 16u;
  let low = a0 * b0;
  let middle = a1 * b0 + (low >> 16u);
  let other = a0 * b1 + (middle & 0xffffu);
  let high = a1 * b1 + (middle >> 16u) + (other >> 16u);
  return vec2<u32>(a.x * b.x, high + a.x * b.y + a.y * b.x);
}

fn ult64(a: vec2<u32>, b: vec2<u32>) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }

fn slt64(a: vec2<u32>, b: vec2<u32>) -> bool {
  return bitcast<i32>(a.y) < bitcast<i32>(b.y) || (a.y == b.y && a.x < b.x);
}

fn eq64(a: vec2<u32>, b: vec2<u32>) -> bool { return a.x == b.x && a.y == b.y; }

fn abs64(a: vec2<u32>) -> vec2<u32> { return select(a, neg64(a), bitcast<i32>(a.y) < 0i); }

fn shl64(a: vec2<u32>, count: vec2<u32>) -> vec2<u32> {
  let n = count.x;
  if (count.y != 0u || n >= 64u) { return vec2<u32>(0u, 0u); }
  if (n >= 32u) { return vec2<u32>(0u, a.x << (n - 32u)); }
  if (n == 0u) { return a; }
  return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}

fn ushr64(a: vec2<u32>, count: vec2<u32>) -> vec2<u32> {
  let n = count.x;
  if (count.y != 0u || n >= 64u) { return vec2<u32>(0u, 0u); }
  if (n >= 32u) { return vec2<u32>(a.y >> (n - 32u), 0u); }
  if (n == 0u) { return a; }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), a.y >> n);
}

fn sshr64(a: vec2<u32>, count: vec2<u32>) -> vec2<u32> {
  let high = bitcast<i32>(a.y);
  let n = count.x;
  let fill = bitcast<u32>(high >> 31u);
  if (count.y != 0u || n >= 64u) { return vec2<u32>(fill, fill); }
  if (n >= 32u) { return vec2<u32>(bitcast<u32>(high >> (n - 32u)), fill); }
  if (n == 0u) { return a; }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), bitcast<u32>(high >> n));
}

fn divide64(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
  var quotient = vec2<u32>(0u, 0u);
  var rest = vec2<u32>(0u, 0u);
  if (b.x == 0u && b.y == 0u) { return vec4<u32>(0u, 0u, 0u, 0u); }
  for (var i = 63i; i >= 0i; i = i - 1i) {
    let word = select(a.x, a.y, i >= 32i);
    let bit = (word >> (u32(i) & 31u)) & 1u;
    let carry = rest.y >> 31u;
    rest = vec2<u32>((rest.x << 1u) | bit, (rest.y << 1u) | (rest.x >> 31u));
    if (carry == 1u || !ult64(rest, b)) {
      rest = sub64(rest, b);
      if (i >= 32i) { quotient.y = quotient.y | (1u << (u32(i) & 31u)); }
      else { quotient.x = quotient.x | (1u << u32(i)); }
    }
  }
  return vec4<u32>(quotient.x, quotient.y, rest.x, rest.y);
}

fn udiv64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return divide64(a, b).xy; }

fn urem64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return divide64(a, b).zw; }

fn sdiv64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let size = divide64(abs64(a), abs64(b)).xy;
  return select(size, neg64(size), ((a.y ^ b.y) >> 31u) == 1u);
}

fn srem64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let size = divide64(abs64(a), abs64(b)).zw;
  return select(size, neg64(size), bitcast<i32>(a.y) < 0i);
}

fn u64_to_float(a: vec2<u32>) -> f32 {
  if (a.y == 0u) { return f32(a.x); }
  let zeros = countLeadingZeros(a.y);
  let whole = shl64(a, vec2<u32>(zeros, 0u));
  let sticky = select(0u, 1u, whole.x != 0u);
  let rest = (whole.y & 0xffu) * 2u + sticky;
  var bits = ((190u - zeros) << 23u) + ((whole.y >> 8u) - 0x800000u);
  if (rest > 256u || (rest == 256u && (bits & 1u) == 1u)) { bits = bits + 1u; }
  return bitcast<f32>(bits);
}

fn i64_to_float(a: vec2<u32>) -> f32 {
  let size = u64_to_float(abs64(a));
  return select(size, -size, bitcast<i32>(a.y) < 0i);
}

fn float_magnitude64(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x) & 0x7fffffffu;
  let e = i32(bits >> 23u) - 150i;
  let mantissa = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
  if (e >= 0i) { return shl64(mantissa, vec2<u32>(u32(e), 0u)); }
  return ushr64(mantissa, vec2<u32>(u32(-e), 0u));
}

fn float_to_i64(x: f32) -> vec2<u32> {
  if (is_nan(x)) { return vec2<u32>(0u, 0u); }
  if (x >= 9223372036854775808.0f) { return vec2<u32>(0xffffffffu, 0x7fffffffu); }
  if (x < -9223372036854775808.0f) { return vec2<u32>(0u, 0x80000000u); }
  let size = float_magnitude64(x);
  return select(size, neg64(size), x < 0.0f);
}

fn float_to_u64(x: f32) -> vec2<u32> {
  if (is_nan(x) || x <= 0.0f) { return vec2<u32>(0u, 0u); }
  if (x >= 18446744073709551616.0f) { return vec2<u32>(0xffffffffu, 0xffffffffu); }
  return float_magnitude64(x);
}
"""

FUNCTIONS: dict[str, str] = {}
for _text in re.split(r"\n\n(?=fn )", _SOURCE.strip()):
    _match = re.match(r"fn (\w+)", _text)
    assert _match is not None
    FUNCTIONS[_match.group(1)] = _text


def called(text: str, known: Iterable[str]) -> set[str]:
    """Names of known functions that a text calls."""
    return set(known) & set(re.findall(r"\b(\w+)\(", text))


def closure(names: Iterable[str], known: Mapping[str, str]) -> list[str]:
    """Texts of these functions and of all that they call; WGSL does not mind the order, readers like the given one."""
    needed: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name not in needed:
            needed.add(name)
            stack.extend(called(known[name], known) - {name})
    return [text for name, text in known.items() if name in needed]
