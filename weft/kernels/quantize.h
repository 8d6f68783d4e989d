#pragma once
// Rows of weights as int8 with one scale each (docs/refit.md). fp32, plain IEEE operations, no FMA: the same bits on every
// target, and a row's scale does not know how the row was cut. On the caller's thread.

#include <cstdint>

namespace weft::kernels {

// max |x[i]|, +0 of nothing: the largest bits, so that it depends on no order. Not finite where an element is not.
float max_magnitude(const float* x, int64_t n);

// The scale of a row whose largest magnitude (of all its parts) this is: magnitude / 127. 0 where that is no normal number: a row
// of zeros, or of less than 127 * 2^-126, which counts as zeros.
float row_scale(float magnitude);

// q[i] = x[i] / scale, rounded to nearest even, within [-127, 127]; 0 for scale 0. |x[i]| <= the row's magnitude: then
// |x - scale q| <= scale (1/2 + 2^-18), the last term from the division.
void quantize(const float* x, float scale, int8_t* q, int64_t n);

// What an int8 weight stands for.
inline float dequantized(int8_t q, float scale) { return static_cast<float>(q) * scale; }

}  // namespace weft::kernels
