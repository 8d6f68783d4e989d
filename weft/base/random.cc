#include "weft/base/random.h"

#include <cmath>

#include "weft/base/math.h"

namespace weft {

double CounterRng::normal(uint64_t counter) const {
  const uint64_t bits = at(counter);
  constexpr double kTwoPi = 6.283185307179586;
  // The second word is mixed from the first: a counter of its own would be another caller's number.
  const double radius = std::sqrt(-2.0 * det_log(uniform_from_bits(bits)));
  return radius * det_cos(kTwoPi * uniform_from_bits(mix64(bits + kGoldenGamma)));
}

}  // namespace weft
