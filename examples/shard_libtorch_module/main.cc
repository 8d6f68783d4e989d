// A model of libtorch's own modules, trained by torch::optim on two ranks that hold half of everything each, and on one rank for
// comparison. `shard_libtorch_module [ranks]`; under mpirun the ranks are processes.
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "weft/comm/launch.h"
#include "weft/parallel/sharded_module.h"

struct Block : torch::nn::Module {
  Block() : norm(torch::nn::LayerNormOptions({32})), up(32, 96), down(96, 32) {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};

struct Model : torch::nn::Module {
  Model() : in(16, 32), out(32, 1) {
    register_module("in", in);
    for (int i = 0; i < 4; ++i) blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
    register_module("out", out);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = in(x);
    for (auto& block : blocks) x = weft::forward(block, x);  // the one line that sharding asks of a model
    return out(x);
  }
  torch::nn::Linear in, out;
  std::vector<std::shared_ptr<Block>> blocks;
};

constexpr int64_t kRows = 64;
constexpr int kSteps = 20;

// Rows [begin, begin + count) of the batch; the loss divides by all rows, so that the ranks' gradients add up to one rank's.
template <class Forward>
double train(torch::nn::Module& model, Forward&& forward, int64_t begin, int64_t count) {
  at::Generator random = at::make_generator<at::CPUGeneratorImpl>(1);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-3));
  double loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    const torch::Tensor x = torch::randn({kRows, 16}, random);
    const torch::Tensor y = torch::sin(x.sum(1, true));
    optimizer.zero_grad();
    torch::Tensor sum = (forward(x.narrow(0, begin, count)) - y.narrow(0, begin, count)).pow(2).sum() / kRows;
    sum.backward();
    optimizer.step();
    loss = sum.item<double>();
  }
  return loss;
}

std::shared_ptr<Model> make_model() {
  static std::mutex one_at_a_time;  // libtorch's modules draw from the process's generator
  std::lock_guard lock(one_at_a_time);
  torch::manual_seed(7);
  return std::make_shared<Model>();
}

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  auto whole = make_model();
  train(*whole, [&](const torch::Tensor& x) { return whole->forward(x); }, 0, kRows);
  double worst = 0;
  weft::run_ranks(ranks, {}, [&](weft::Communicator& world) {
    auto mesh = weft::make_rank_mesh(weft::parse_parallel_dims("fsdp=" + std::to_string(ranks)), world);
    auto model = make_model();
    for (auto& block : model->blocks) weft::fully_shard(block, mesh);
    weft::Sharded<Model> sharded = weft::fully_shard(model, mesh);
    const int64_t begin = kRows * world.rank() / world.size(), end = kRows * (world.rank() + 1) / world.size();
    train(*model, sharded, begin, end - begin);
    int64_t held = 0, all = 0;
    for (const auto& [name, parameter] : weft::sharded_state_dict(*model)) {
      const torch::Tensor full = parameter.full_tensor(), expected = whole->named_parameters()[name].detach();
      held += parameter.local().numel(), all += full.numel();
      if (world.rank() == 0) worst = std::max(worst, (full - expected).abs().max().item<double>());
    }
    std::printf("rank %d holds %lld of %lld weights\n", world.rank(), static_cast<long long>(held), static_cast<long long>(all));
  });
  std::printf("largest difference to one rank after %d steps: %.1e\n", kSteps, worst);
  return worst < 1e-4 ? 0 : 1;  // AdamW moves a weight by 1e-3 a step, and near a zero gradient rounding decides a part of that
}
