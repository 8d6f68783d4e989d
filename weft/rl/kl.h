#pragma once
// KL divergence to a reference policy, per token from the sampled tokens' log-probs; in the loss (with gradient) or in the
// reward. Names: k1 = kl, k2 = mse, k3 = low_var_kl, abs. With "+" (straight-through): that value, the gradient of k2. verl's
// clamps: k3 clamps the log-ratio at +-20 and its value at 10; the gradient is 0 beyond either.

#include <span>
#include <string>
#include <vector>

#include "weft/rl/aggregation.h"
#include "weft/rl/rows.h"

namespace weft {

enum class KlEstimator { kK1, kK2, kK3, kAbs };

struct KlKind {
  KlEstimator estimator = KlEstimator::kK3;
  bool straight_through = false;  // gradient of k2
};

// ValueError that lists the names for an unknown one.
KlKind parse_kl_kind(const std::string& name);

struct KlTerm {
  double value;
  double grad;  // d value / d log_prob
};
KlTerm kl_term(KlKind kind, double log_prob, double ref_log_prob);

// coef * aggregate(kl). unbiased: each term is multiplied by the ratio exp(log_prob - old_log_prob) with its gradient (clamped as
// in the policy loss); then old_log_probs is needed, else it may be empty. Values outside the mask are never read.
struct KlLossResult {
  double loss = 0;
  std::vector<double> grad;  // per token, d loss / d log_prob
  double kl_sum = 0;         // sum of the estimate over tokens that count, without ratio and coefficient
  double tokens = 0;
};
struct KlLossOptions {
  KlKind kind;
  double coef = 0.001;
  bool unbiased = false;
};
KlLossResult kl_loss(const KlLossOptions& options, const PackedRows& rows, std::span<const double> log_probs,
                     std::span<const double> old_log_probs, std::span<const double> ref_log_probs,
                     const Aggregation& aggregation);

// coef * kl(old, ref) per token that counts: subtract it from token rewards, or its row sums (row_sums) from outcome rewards
// before the group statistics.
std::vector<double> kl_in_reward(KlKind kind, double coef, const PackedRows& rows, std::span<const double> old_log_probs,
                                 std::span<const double> ref_log_probs);
std::vector<double> row_sums(const PackedRows& rows, std::span<const double> values);

// verl's adaptive coefficient: after a step of n rows with mean KL `kl`, coef *= 1 + clip(kl / target - 1, -0.2, 0.2) * n /
// horizon.
class AdaptiveKlController {
 public:
  // ValueError unless target and horizon are above 0 and coef is not negative.
  AdaptiveKlController(double coef, double target, double horizon);
  double coef() const { return coef_; }
  void set_coef(double coef) { coef_ = coef; }  // resume
  void update(double kl, double rows);

 private:
  double coef_;
  double target_;
  double horizon_;
};

}  // namespace weft
