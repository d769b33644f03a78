"""64-bit integers for WGSL without i64: pairs of words, ``vec2<u32>``, the low word first, as in memory."""
from __future__ import annotations

import re
from typing import Final

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp

PAIR: Final = "vec2<u32>"
_NAMES: Final = {Ops.ADD: "add64", Ops.SUB: "sub64", Ops.MUL: "mul64", Ops.SHL: "shl64"}
_BY_SIGN: Final = {Ops.IDIV: "div64", Ops.MOD: "mod64", Ops.SHR: "shr64", Ops.CMPLT: "lt64"}
FUNCTIONS: Final = {
    "add64": """fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x)); }""",
    "sub64": """fn sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x)); }""",
    "mul64": """fn mul64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let c = vec2<u32>(a.x & 0xffffu, a.x >> 16u);
  let d = vec2<u32>(b.x & 0xffffu, b.x >> 16u);
  let middle = c.y * d.x + ((c.x * d.x) >> 16u);
  let other = c.x * d.y + (middle & 0xffffu);
  return vec2<u32>(a.x * b.x, c.y * d.y + (middle >> 16u) + (other >> 16u) + a.x * b.y + a.y * b.x); }""",
    "shl64": """fn shl64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let n = b.x & 31u;
  if (b.y != 0u || b.x > 63u) { return vec2<u32>(0u, 0u); }
  if (b.x > 31u) { return vec2<u32>(0u, a.x << n); }
  return vec2<u32>(a.x << n, (a.y << n) | ((a.x >> 1u) >> (31u - n))); }""",
    "shr64_u": """fn shr64_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let n = b.x & 31u;
  if (b.y != 0u || b.x > 63u) { return vec2<u32>(0u, 0u); }
  if (b.x > 31u) { return vec2<u32>(a.y >> n, 0u); }
  return vec2<u32>((a.x >> n) | ((a.y << 1u) << (31u - n)), a.y >> n); }""",
    "shr64_s": """fn shr64_s(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let sign = vec2<u32>(0u - (a.y >> 31u));
  return shr64_u(a ^ sign, b) ^ sign; }""",
    "lt64_u": "fn lt64_u(a: vec2<u32>, b: vec2<u32>) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }",
    "lt64_s": """fn lt64_s(a: vec2<u32>, b: vec2<u32>) -> bool {
  return lt64_u(a ^ vec2<u32>(0u, 0x80000000u), b ^ vec2<u32>(0u, 0x80000000u)); }""",
    "div64_u": """fn div64_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  var q = vec2<u32>(0u, 0u);
  var r = vec2<u32>(0u, 0u);
  if (all(b == q)) { return q; }
  for (var n: u32 = 64u; n > 0u; n--) {
    let bit = select(a.x, a.y, n > 32u) >> ((n - 1u) & 31u);
    let beyond = r.y >> 31u;
    r = vec2<u32>((r.x << 1u) | (bit & 1u), (r.y << 1u) | (r.x >> 31u));
    q = vec2<u32>(q.x << 1u, (q.y << 1u) | (q.x >> 31u));
    if (beyond == 1u || !lt64_u(r, b)) {
      r = sub64(r, b);
      q.x |= 1u; } }
  return q; }""",
    "mod64_u": """fn mod64_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (all(b == vec2<u32>(0u, 0u))) { return b; }
  return sub64(a, mul64(div64_u(a, b), b)); }""",
    "abs64": """fn abs64(a: vec2<u32>) -> vec2<u32> {
  return select(a, sub64(vec2<u32>(0u, 0u), a), (a.y >> 31u) == 1u); }""",
    "div64_s": """fn div64_s(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let zero = vec2<u32>(0u, 0u);
  let q = div64_u(abs64(a), abs64(b));
  if (((a.y ^ b.y) >> 31u) == 0u) { return q; }
  let whole = all(mul64(q, abs64(b)) == abs64(a)) || all(b == zero);
  return sub64(sub64(zero, q), select(vec2<u32>(1u, 0u), zero, whole)); }""",
    "mod64_s": """fn mod64_s(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (all(b == vec2<u32>(0u, 0u))) { return b; }
  return sub64(a, mul64(div64_s(a, b), b)); }""",
    "f32_u64": """fn f32_u64(a: vec2<u32>) -> f32 {
  if (a.y == 0u) { return f32(a.x); }
  let n = countLeadingZeros(a.y);
  let top = shl64(a, vec2<u32>(n, 0u));
  return f32(top.y | select(1u, 0u, top.x == 0u)) * bitcast<f32>((159u - n) << 23u); }""",
    "f32_i64": """fn f32_i64(a: vec2<u32>) -> f32 {
  return select(1.0f, -1.0f, (a.y >> 31u) == 1u) * f32_u64(abs64(a)); }""",
    "u64_f32": """fn u64_f32(a: f32) -> vec2<u32> {
  if (!(a > 0.0f)) { return vec2<u32>(0u, 0u); }
  if (a >= 18446744073709551616.0f) { return vec2<u32>(0xffffffffu, 0xffffffffu); }
  let high = u32(a * 2.3283064365386963e-10f);
  return vec2<u32>(u32(a - f32(high) * 4294967296.0f), high); }""",
    "i64_f32": """fn i64_f32(a: f32) -> vec2<u32> {
  if (a >= 9223372036854775808.0f) { return vec2<u32>(0xffffffffu, 0x7fffffffu); }
  if (a <= -9223372036854775808.0f) { return vec2<u32>(0u, 0x80000000u); }
  let found = u64_f32(abs(a));
  return select(found, sub64(vec2<u32>(0u, 0u), found), a < 0.0f); }""",
}


def is_pair(dtype: DType) -> bool:
    return dtype.scalar in (dtypes.int64, dtypes.uint64)


def literal(value: int) -> str:
    return f"vec2<u32>({value & 0xFFFFFFFF}u, {value >> 32 & 0xFFFFFFFF}u)"


def operation(u: UOp, src: list[str]) -> str:
    """Return an operation on pairs, or a comparison of pairs."""
    op, sign = u.op, "u" if u.src[-1].dtype.is_unsigned else "s"
    if op in (Ops.CMPEQ, Ops.CMPNE):
        return f"all({src[0]}=={src[1]})" if op is Ops.CMPEQ else f"any({src[0]}!={src[1]})"
    if op is Ops.WHERE:
        return f"select({src[2]}, {src[1]}, {src[0]})"
    if op in (Ops.MAX, Ops.MIN):
        a, b = src if op is Ops.MIN else src[::-1]
        return f"select({src[1]}, {src[0]}, lt64_{sign}({a}, {b}))"
    if op is Ops.NEG:
        return f"sub64({literal(0)}, {src[0]})"
    if op is Ops.MULADD:
        return f"add64(mul64({src[0]}, {src[1]}), {src[2]})"
    if op in _NAMES:
        return f"{_NAMES[op]}({src[0]}, {src[1]})"
    if op in _BY_SIGN:
        return f"{_BY_SIGN[op]}_{sign}({src[0]}, {src[1]})"
    return f"({src[0]}{ {Ops.AND: '&', Ops.OR: '|', Ops.XOR: '^'}[op]}{src[1]})"


def to_pair(dtype: DType, source: DType, a: str) -> str:
    """Convert a bool, float32 or integer of up to 32 bits to a pair."""
    if source.is_bool:
        return f"vec2<u32>(select(0u, 1u, {a}), 0u)"
    if source.is_float:
        return f"{'u' if dtype.is_unsigned else 'i'}64_f32({a})"
    if source.is_unsigned:
        return f"vec2<u32>({a}, 0u)"
    return f"vec2<u32>(bitcast<u32>({a}), bitcast<u32>({a} >> 31u))"


def helpers(text: str) -> list[str]:
    """Return the helper functions that a text calls, directly or indirectly."""
    found: dict[str, str] = {}
    while True:
        called = [n for n in FUNCTIONS if n not in found and re.search(rf"\b{n}\(", text)]
        if not called:
            return list(found.values())
        found |= {n: FUNCTIONS[n] for n in called}
        text = "\n".join(found.values())
