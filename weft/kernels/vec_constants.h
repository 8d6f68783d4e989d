#pragma once
// Constants shared by the vector exp/log (vec_math.h) and their scalar twins (scalar_math.h). Polynomials are interpolants at
// Chebyshev nodes of (e^r - 1 - r)/r^2 on |r| <= ln(2)/2 and of (log(1+f) - f + f^2/2)/f^3 on [sqrt(1/2)-1, sqrt(2)-1]; their own
// error is below 0.06 ulp of fp32, so rounding dominates.

namespace weft::kernels {

inline constexpr float kLog2E = 0x1.715476p+0f;
// ln 2 in two parts; the first has 16 bits, so its product with an exponent is exact.
inline constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 1.4286068202862268e-06f;
inline constexpr float kExpLowest = -88.0f;  // below: 2^-127 is built as +0
inline constexpr float kExpHighest = 89.0f;  // above e^88.73: inf
inline constexpr float kSmallestNormal = 0x1p-126f;
inline constexpr float kSqrt2 = 0x1.6a09e6p+0f;

inline constexpr float kExpPoly[6] = {0.5000000013487226f,  0.16666666681647016f,   0.04166646471137908f,
                                      0.00833331090172597f, 0.0013933673732931852f, 0.0001989101718430203f};
inline constexpr float kLogPoly[9] = {0.3333333117427613f,   -0.24999996925400272f, 0.20000717213085337f,
                                      -0.16667807132962642f, 0.14249007240593695f,  -0.12425523359933803f,
                                      0.11685784721037067f,  -0.11481212058518438f, 0.0697251863387954f};

}  // namespace weft::kernels
