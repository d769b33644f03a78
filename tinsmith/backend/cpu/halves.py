"""Conversions of 16-bit floats, which LLVM calls by these names where the processor has no instruction for them.

C libraries provide some of them, none provides all. Renderers emit vector sequences instead where speed matters.
"""
from __future__ import annotations

from typing import Final

SYMBOLS: Final = ("__truncsfbf2", "__truncdfbf2", "__truncsfhf2", "__truncdfhf2", "__extendhfsf2")

TEXT: Final = """
; Round to nearest, ties to even: adding 0x7fff plus the lowest bit that stays carries exactly when it should.
define bfloat @__truncsfbf2(float %x) {
  %bits = bitcast float %x to i32
  %high = lshr i32 %bits, 16
  %odd = and i32 %high, 1
  %bias = add i32 %odd, 32767
  %rounded = add i32 %bits, %bias
  %quiet = or i32 %bits, 4194304
  %nan = fcmp uno float %x, %x
  %chosen = select i1 %nan, i32 %quiet, i32 %rounded
  %top = lshr i32 %chosen, 16
  %short = trunc i32 %top to i16
  %result = bitcast i16 %short to bfloat
  ret bfloat %result
}

define half @__truncsfhf2(float %x) {
  %bits = bitcast float %x to i32
  %sign_high = lshr i32 %bits, 16
  %sign = and i32 %sign_high, 32768
  %size = and i32 %bits, 2147483647
  ; Below 2^-14: the unit of 0.5 is that of half's denormals, so one float addition rounds to it.
  %float_size = bitcast i32 %size to float
  %shifted = fadd float %float_size, 5.0e-01
  %shifted_bits = bitcast float %shifted to i32
  %denormal = sub i32 %shifted_bits, 1056964608
  %high = lshr i32 %size, 13
  %odd = and i32 %high, 1
  %bias = add i32 %odd, 4095
  %rounded = add i32 %size, %bias
  %rebased = sub i32 %rounded, 939524096
  %normal = lshr i32 %rebased, 13
  %payload = and i32 %high, 1023
  %quiet = or i32 %payload, 32256
  %small = icmp ult i32 %size, 947912704
  %huge = icmp uge i32 %size, 1199566848
  %nan = icmp ugt i32 %size, 2139095040
  %a = select i1 %small, i32 %denormal, i32 %normal
  %b = select i1 %huge, i32 31744, i32 %a
  %c = select i1 %nan, i32 %quiet, i32 %b
  %signed = or i32 %c, %sign
  %short = trunc i32 %signed to i16
  %result = bitcast i16 %short to half
  ret half %result
}

; A multiplication by 2^112 moves the exponent's zero and makes denormals normal.
define float @__extendhfsf2(half %x) {
  %short = bitcast half %x to i16
  %bits = zext i16 %short to i32
  %sign_low = and i32 %bits, 32768
  %sign = shl i32 %sign_low, 16
  %size = and i32 %bits, 32767
  %moved = shl i32 %size, 13
  %float_moved = bitcast i32 %moved to float
  %scaled = fmul float %float_moved, 0x46F0000000000000
  %finite = bitcast float %scaled to i32
  %special = or i32 %moved, 2139095040
  %is_special = icmp uge i32 %size, 31744
  %chosen = select i1 %is_special, i32 %special, i32 %finite
  %signed = or i32 %chosen, %sign
  %result = bitcast i32 %signed to float
  ret float %result
}

; Rounding a double to odd first makes the second rounding exact: an inexact result never looks like a tie.
define internal float @to_odd(double %x) {
  %near = fptrunc double %x to float
  %bits = bitcast float %near to i32
  %back = fpext float %near to double
  %inexact = fcmp une double %back, %x
  %back_size = call double @llvm.fabs.f64(double %back)
  %x_size = call double @llvm.fabs.f64(double %x)
  %above = fcmp ogt double %back_size, %x_size
  %step = zext i1 %above to i32
  %cut = sub i32 %bits, %step
  %sticky = zext i1 %inexact to i32
  %odd = or i32 %cut, %sticky
  %result = bitcast i32 %odd to float
  ret float %result
}
declare double @llvm.fabs.f64(double)

define bfloat @__truncdfbf2(double %x) {
  %odd = call float @to_odd(double %x)
  %result = call bfloat @__truncsfbf2(float %odd)
  ret bfloat %result
}

define half @__truncdfhf2(double %x) {
  %odd = call float @to_odd(double %x)
  %result = call half @__truncsfhf2(float %odd)
  ret half %result
}
"""
