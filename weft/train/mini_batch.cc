#include "weft/train/mini_batch.h"

#include <algorithm>
#include <numeric>

#include "weft/base/random.h"
#include "weft/io/dataset.h"

namespace weft {

int64_t mini_batches(const Recipe& recipe, int64_t prompts) {
  const int64_t mini = recipe.actor.mini_batch_size;
  return (prompts + mini - 1) / mini;
}

std::vector<size_t> mini_batch_members(const Recipe& recipe, int64_t step, int64_t prompts, int64_t u) {
  const int64_t n = recipe.rollout.n, mini = recipe.actor.mini_batch_size, minis = mini_batches(recipe, prompts);
  const int64_t epoch = u / minis, m = u % minis;
  std::vector<int64_t> order(static_cast<size_t>(prompts));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (recipe.actor.shuffle)
    order = shuffled_rows(prompts, hash_combine(static_cast<uint64_t>(recipe.trainer.seed), static_cast<uint64_t>(step)), epoch);
  std::vector<size_t> members;
  for (int64_t i = m * mini; i < std::min(prompts, (m + 1) * mini); ++i)
    for (int64_t s = 0; s < n; ++s) members.push_back(static_cast<size_t>(order[static_cast<size_t>(i)] * n + s));
  return members;
}

}  // namespace weft
