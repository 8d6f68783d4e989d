// weft with a reward and a policy loss of one's own, in C++: the whole program. recipe.toml names both.
#include <algorithm>
#include <memory>

#include "weft/base/math.h"
#include "weft/cli/weft.h"

void add_own_algorithms(weft::Registry& registry);  // advantage_and_correction.cc

namespace {

// 1 for a completion that holds the ground truth, less 0.01 for each character more than that: "digits" or "digits:0.05".
class DigitsReward : public weft::RewardFunction {
 public:
  explicit DigitsReward(double price) : price_(price) {}
  std::string name() const override { return "digits"; }

  std::vector<weft::RewardValue> score(std::span<const weft::RewardRequest> requests) override {
    std::vector<weft::RewardValue> values;
    for (const weft::RewardRequest& r : requests) {
      const std::string answer = weft::accepted_answers(r, name()).front();
      const bool right = r.completion.find(answer) != std::string::npos;
      const double extra = static_cast<double>(std::max(r.completion.size(), answer.size()) - answer.size());
      values.emplace_back().value = right ? 1.0 - price_ * extra : 0.0;
    }
    return values;
  }

 private:
  double price_;
};

// REINFORCE on the ratio, without gradient where the ratio has left [1 - low, 1 + high] on the side that the advantage pushes to.
void masked_ratio_loss(const weft::PolicyRow& row, const weft::PolicyParams& p, weft::PolicyRowResult& out) {
  for (size_t t = 0; t < row.size(); ++t) {
    const double a = row.advantages[t], ratio = weft::det_exp(row.log_probs[t] - row.old_log_probs[t]);
    const bool outside = a > 0 ? ratio > 1 + p.clip_ratio_high : ratio < 1 - p.clip_ratio_low;
    out.loss[t] = -a * ratio;
    out.grad[t] = outside ? 0.0 : row.weights[t] * -a * ratio;
    out.clipped += outside;
  }
}

}  // namespace

int main(int argc, char** argv) {
  weft::Registry registry;
  registry.rewards.add("digits", [](const std::string& params) {
    return std::make_unique<DigitsReward>(params.empty() ? 0.01 : std::stod(params));
  });
  registry.policy_losses["masked_ratio"] = {masked_ratio_loss};
  add_own_algorithms(registry);
  return weft::main(argc, argv, registry);
}
