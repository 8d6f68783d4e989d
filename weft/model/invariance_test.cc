// The promise of the numerics contract at the level of the model: a sequence's bits do not depend on its companions, on
// recompute, on threads or on the kernels' target.

#include <numeric>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include "weft/base/threads.h"
#include "weft/kernels/target.h"
#include "weft/model/test_support.h"
#include "weft/nn/autograd.h"

namespace weft {
namespace {

using namespace weft::testing;
using nn::testing::relative;
using nn::testing::same_bits;

class Invariance : public ::testing::Test {
 protected:
  void SetUp() override { set_denormals_flushed(); }
  void TearDown() override {
    kernels::force_target(kernels::available_targets().back());
    set_num_threads(1);
    nn::force_compositions(nn::kNoOp);
  }
};

constexpr char kDense[] = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 53, "hidden_size": 24,
    "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 6,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": true,
    "mlp_bias": true, "rope_theta": 1000.0})";

struct Forward {
  at::Tensor hidden, log_probs;
};

Forward forward(CausalLM& m, const std::vector<Tokens>& sequences, ForwardOptions options = {}) {
  LiveRouting live;
  at::Tensor hidden = hidden_of(m, sequences, live, options);
  auto rows = std::make_shared<nn::HeadRows>();
  for (const Tokens& s : sequences)
    for (const int32_t t : s) rows->rows.push_back({(t + 1) % 53, 1.0f / 0.7f, nullptr, nullptr});
  return {hidden.detach(), m.log_probs(m.final_norm(hidden), rows, false).log_probs.detach()};
}

TEST_F(Invariance, ASequenceHasTheSameBitsEverywhere) {
  const std::vector<Tokens> batch = {some_tokens(5, 1), some_tokens(1, 2), some_tokens(70, 3), some_tokens(11, 4)};
  for (const std::string& json : {moe_json({}), std::string(kDense)})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      auto m = make_model(config_of(json), dtype);
      kernels::force_target(kernels::Target::kPortable);
      std::vector<Forward> alone;
      for (const Tokens& t : batch) alone.push_back(forward(*m, {t}));
      for (const kernels::Target target : kernels::available_targets())
        for (const int threads : {1, 2, 3}) {
          kernels::force_target(target);
          set_num_threads(threads);
          for (const bool recompute : {false, true}) {
            const Forward all = forward(*m, {batch[2], batch[0], batch[3], batch[1]}, {.recompute = recompute});
            int64_t row = 0;
            for (const size_t i : {2, 0, 3, 1}) {
              const auto n = static_cast<int64_t>(batch[i].size());
              EXPECT_TRUE(same_bits(all.hidden.narrow(0, row, n), alone[i].hidden))
                  << kernels::target_name(target) << ", " << threads << " threads, sequence " << i;
              EXPECT_TRUE(same_bits(all.log_probs.narrow(0, row, n), alone[i].log_probs));
              row += n;
            }
          }
        }
    }
}

TEST_F(Invariance, APrefixDoesNotDependOnWhatFollows) {
  auto m = tiny_moe();
  const Tokens longer = some_tokens(80, 3), shorter(longer.begin(), longer.begin() + 33);
  EXPECT_TRUE(same_bits(forward(*m, {longer}).hidden.narrow(0, 0, 33), forward(*m, {shorter}).hidden));
}

TEST_F(Invariance, GradientsDoNotDependOnThreadsOrTarget) {
  const std::vector<Tokens> batch = {some_tokens(5, 1), some_tokens(70, 3)};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    auto m = tiny_moe(dtype);
    std::vector<at::Tensor> first;
    for (const kernels::Target target : kernels::available_targets())
      for (const int threads : {1, 3})
        for (const bool recompute : {false, true}) {
          kernels::force_target(target);
          set_num_threads(threads);
          for (nn::Parameter* p : m->parameters()) p->zero_grad();
          LiveRouting live;
          nn::backward({hidden_of(*m, batch, live, {.recompute = recompute})}, {nn::testing::normal({75, 24}, 4)});
          std::vector<at::Tensor> grads;
          for (nn::Parameter* p : m->parameters()) grads.push_back(p->mutable_grad().clone());
          if (first.empty()) first = grads;
          for (size_t i = 0; i < grads.size(); ++i)
            EXPECT_TRUE(same_bits(grads[i], first[i])) << m->parameters()[i]->name() << ", " << kernels::target_name(target);
        }
  }
}

// What the tests above would catch: another order of additions does change bits.
TEST_F(Invariance, AnotherOrderOfAdditionsIsSeen) {
  auto m = tiny_moe();
  at::NoGradGuard guard;
  const std::vector<Tokens> batch = {some_tokens(30, 5)};
  RoutingBuffer buffer = buffer_of(*m, 30);
  RecordRouting record(buffer);
  const at::Tensor y = hidden_of(*m, batch, record);
  for (int64_t t = 0; t < 30; ++t)
    for (int64_t l = 0; l < 2; ++l) std::reverse(buffer.at(t, l), buffer.at(t, l) + 3);
  ReplayRouting reversed(buffer);
  const at::Tensor z = hidden_of(*m, batch, reversed);
  EXPECT_FALSE(same_bits(y, z));
  EXPECT_LE(relative(z, y), 1e-4);
  nn::force_compositions(nn::kEveryOp);
  LiveRouting live;
  const at::Tensor composed = hidden_of(*m, batch, live);
  EXPECT_FALSE(same_bits(y, composed));
  EXPECT_LE(relative(composed, y), 1e-4);
}

// A step of rollout through compositions: other devices run the model this way, with attention over the host's cache.
TEST_F(Invariance, CompositionsOverAPagedCacheMatchAWholeForward) {
  auto m = tiny_moe();
  at::NoGradGuard guard;
  const Tokens tokens = some_tokens(21, 6);
  LiveRouting live;
  const at::Tensor whole = hidden_of(*m, {tokens}, live);
  nn::force_compositions(nn::kEveryOp);
  const kernels::KvShape kv{2, 10, 8, DType::kF32};
  std::vector<std::vector<float>> memory(3, std::vector<float>(static_cast<size_t>(kv.block_elements() * 3)));
  std::vector<void*> caches;
  for (auto& layer : memory) caches.push_back(layer.data());
  const std::vector<int32_t> blocks = {2, 0, 1};
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < 21;) {
    const int64_t end = begin == 0 ? 13 : begin + 1;  // a prompt, then a token at a time
    const SequenceSpan span{tokens, begin, end};
    const TokenBatch batch = TokenBatch::pack({&span, 1}, 0);
    nn::PagedAttention attention(m->attention_shape(), kv, {{0, end - begin, begin, blocks.data()}}, caches);
    parts.push_back(m->forward(batch, attention, live));
    begin = end;
  }
  const at::Tensor paged = at::cat(parts, 0);
  EXPECT_LE(relative(paged, whole), 1e-4);
  const at::Tensor a = m->logits(m->final_norm(paged)).argmax(1), b = m->logits(m->final_norm(whole)).argmax(1);
  EXPECT_TRUE(at::equal(a, b));
}

}  // namespace
}  // namespace weft
