#pragma once
// Elementary functions in double that return the same bits on every machine: only IEEE add, multiply, divide and std::fma,
// no libm (whose exp, log, sin, cos and pow differ between versions and CPUs). Error: at most 1.5 ulp (det_pow: 2 ulp),
// measured in math_test.cc against long double. Never throws; no state; round-to-nearest mode is assumed.

namespace weft {

// e^x. det_exp(0) == 1 exactly; overflow gives inf, underflow rounds through the denormals to 0; NaN stays NaN.
double det_exp(double x);

// Natural logarithm. det_log(1) == 0 exactly; 0 gives -inf; negative gives NaN; denormals are exact arguments.
double det_log(double x);

// Radians. Reduced with 160 bits of pi/2: the error bound holds for |x| < 2^45; beyond it (and for inf and NaN) NaN.
double det_sin(double x);
double det_cos(double x);

// x^y for x >= 0 (negative x gives NaN). det_pow(1, y) == det_pow(x, 0) == 1.
double det_pow(double x, double y);

}  // namespace weft
