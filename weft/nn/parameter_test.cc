// Parameters (copies, packed form, gradients), hooks, recompute and tied weights.

#include <sstream>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones_like.h>

#include "weft/base/error.h"
#include "weft/kernels/target.h"
#include "weft/nn/activation.h"
#include "weft/nn/embedding.h"
#include "weft/nn/head.h"
#include "weft/nn/linear.h"
#include "weft/nn/module.h"
#include "weft/nn/norm.h"
#include "weft/nn/test_support.h"

namespace weft::nn {
namespace {

using namespace testing;

void set(Parameter& p, const at::Tensor& value) {
  at::NoGradGuard guard;
  p.master().copy_(value);
  p.updated();
}

TEST(Parameter, UpdatedRefreshesCopyAndPackedForm) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a = normal({20, 33}, 1), b = normal({20, 33}, 2), x = normal({4, 33}, 3).to(dtype);
    auto p = parameter(a, dtype), fresh = parameter(b, dtype);
    at::NoGradGuard guard;
    const at::Tensor first = linear(x, *p, nullptr, at::kFloat);
    set(*p, a);
    EXPECT_TRUE(same_bits(linear(x, *p, nullptr, at::kFloat), first));
    set(*p, b);
    EXPECT_TRUE(same_bits(p->compute(), b.to(dtype)));
    const at::Tensor second = linear(x, *p, nullptr, at::kFloat);
    EXPECT_TRUE(same_bits(second, linear(x, *fresh, nullptr, at::kFloat)));
    EXPECT_FALSE(same_bits(second, first));
  }
}

TEST(Parameter, AnotherKernelTargetAfterPackingGivesTheSameBits) {
  const auto targets = kernels::available_targets();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    auto p = parameter(normal({20, 33}, 1), dtype);
    const at::Tensor x = normal({4, 33}, 3).to(dtype);
    at::NoGradGuard guard;
    const at::Tensor first = linear(x, *p, nullptr, at::kFloat);
    for (const kernels::Target t : targets) {
      kernels::force_target(t);
      EXPECT_EQ(p->packed().packed_for(), t);
      EXPECT_TRUE(same_bits(linear(x, *p, nullptr, at::kFloat), first)) << kernels::target_name(t);
    }
    kernels::force_target(targets.back());
  }
}

TEST(Parameter, OnlyItsPrecisionIsRounded) {
  auto routed = parameter(normal({3, 4}, 1), at::kBFloat16, Precision::kFp32);
  EXPECT_EQ(routed->compute().scalar_type(), at::kFloat);
  EXPECT_TRUE(routed->compute().is_same(routed->master()));
}

TEST(Parameter, GradientsAccumulateInFp32) {
  for (const bool composed : {false, true}) {
    auto w = parameter(normal({6, 10}, 1), at::kBFloat16);
    const at::Tensor x = normal({5, 10}, 2).to(at::kBFloat16), dy = normal({5, 6}, 3);
    force_compositions(composed ? kEveryOp : kNoOp);
    auto once = [&](float s) { backward({linear(x, *w, nullptr, at::kFloat)}, {dy * s}); };
    once(1);
    EXPECT_EQ(w->grad().scalar_type(), at::kFloat);
    const at::Tensor one = w->grad().clone();
    once(1);
    EXPECT_TRUE(same_bits(w->grad(), one * 2));
    // 64 more after 1024 of them: a bf16 sum would lose every one (its step at 1024 is 8).
    w->zero_grad();
    once(1024);
    for (int i = 0; i < 64; ++i) once(1);
    EXPECT_LE(relative(w->grad(), one * 1088), 1e-5);
    force_compositions(kNoOp);
  }
}

TEST(Parameter, FrozenOnesGetNoGradient) {
  for (const bool composed : {false, true}) {
    auto w = parameter(normal({6, 10}, 1), at::kFloat), b = parameter(normal({6}, 2), at::kFloat, Precision::kFp32);
    auto norm = parameter(normal({10}, 3), at::kFloat, Precision::kFp32), table = parameter(normal({4, 10}, 4), at::kFloat);
    auto head = parameter(normal({7, 6}, 5), at::kFloat);
    for (auto* p : {w.get(), b.get(), norm.get(), head.get()}) p->set_trainable(false);
    force_compositions(composed ? kEveryOp : kNoOp);
    auto rows = std::make_shared<HeadRows>();
    rows->rows = {{1, 1.0f, nullptr, nullptr}, {6, 1.0f, nullptr, nullptr}};
    at::Tensor x = embedding(at::arange(2, at::kInt), *table);
    at::Tensor y = linear(rms_norm(x, *norm, 1e-6f, at::kFloat, true).exact, *w, b.get(), at::kFloat);
    at::Tensor lp = head_log_probs(y, *head, rows, false).log_probs;
    backward({lp}, {at::ones_like(lp)});
    force_compositions(kNoOp);
    for (auto* p : {w.get(), b.get(), norm.get(), head.get()}) EXPECT_FALSE(p->grad().defined());
    EXPECT_GT(table->grad().abs().max().item<float>(), 0);
  }
}

TEST(Parameter, NoGraphIsRecordedWithoutNeed) {
  auto w = parameter(normal({6, 10}, 1), at::kFloat);
  {
    at::NoGradGuard guard;
    EXPECT_FALSE(linear(normal({2, 10}, 2), *w, nullptr, at::kFloat).requires_grad());
  }
  EXPECT_TRUE(linear(normal({2, 10}, 2), *w, nullptr, at::kFloat).requires_grad());
  w->set_trainable(false);
  EXPECT_FALSE(linear(normal({2, 10}, 2), *w, nullptr, at::kFloat).requires_grad());
}

TEST(Parameter, GradientHooksRunOnceAContribution) {
  for (const bool composed : {false, true}) {
    auto w = parameter(normal({6, 10}, 1), at::kFloat), b = parameter(normal({6}, 2), at::kFloat, Precision::kFp32);
    int weights = 0, biases = 0;
    w->add_grad_hook([&](Parameter& p) {
      ++weights;
      EXPECT_GT(p.grad().abs().max().item<float>(), 0);  // already added
    });
    b->add_grad_hook([&](Parameter&) { ++biases; });
    force_compositions(composed ? kEveryOp : kNoOp);
    at::Tensor y = linear(normal({2, 10}, 3), *w, b.get(), at::kFloat), z = linear(normal({3, 10}, 4), *w, nullptr, at::kFloat);
    backward({y, z}, {at::ones_like(y), at::ones_like(z)});
    force_compositions(kNoOp);
    EXPECT_EQ(weights, 2);
    EXPECT_EQ(biases, 1);
  }
}

TEST(Parameter, ATiedTableAddsBothGradients) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor value = normal({9, 6}, 1);
    auto tied = parameter(value, dtype), table = parameter(value, dtype), head = parameter(value, dtype);
    auto rows = std::make_shared<HeadRows>();
    for (const int32_t t : {1, 4, 8}) rows->rows.push_back({t, 1.0f, nullptr, nullptr});
    auto run = [&](Parameter& in, Parameter& out) {
      at::Tensor x = to_dtype(embedding(at::arange(3, at::kInt), in), dtype);
      at::Tensor lp = head_log_probs(x, out, rows, false).log_probs;
      backward({lp}, {at::ones_like(lp)});
    };
    run(*tied, *tied);
    run(*table, *head);
    EXPECT_GT(table->grad().abs().max().item<float>(), 0);
    EXPECT_LE(relative(tied->grad(), table->grad() + head->grad()), 1e-6);
  }
}

// norm -> linear -> swiglu: a block with parameters of both kinds.
struct Block {
  std::unique_ptr<Parameter> norm, w;
  explicit Block(at::ScalarType dtype)
      : norm(parameter(normal({10}, 1), dtype, Precision::kFp32)), w(parameter(normal({20, 10}, 2), dtype)) {}
  at::Tensor operator()(const at::Tensor& x) {
    const at::ScalarType dtype = w->param_dtype();
    return nn::add(x, swiglu_fused(linear(rms_norm(x, *norm, 1e-6f, dtype, false).rounded, *w, nullptr, at::kFloat), at::kFloat));
  }
};

TEST(Recompute, GivesTheSameBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const bool input_grad : {false, true}) {
      Block plain(dtype), again(dtype);
      at::Tensor x = normal({7, 10}, 3), a = x.clone(), b = x.clone();
      if (input_grad) a.set_requires_grad(true), b.set_requires_grad(true);
      at::Tensor y = plain(plain(a)), z = recompute(recompute(b, std::ref(again)), std::ref(again));
      EXPECT_TRUE(same_bits(y, z));
      const at::Tensor dy = normal({7, 10}, 4);
      backward({y}, {dy});
      backward({z}, {dy});
      EXPECT_TRUE(same_bits(plain.norm->grad(), again.norm->grad()));
      EXPECT_TRUE(same_bits(plain.w->grad(), again.w->grad()));
      if (input_grad) {
        EXPECT_TRUE(same_bits(a.grad(), b.grad()));
      }
    }
}

TEST(Recompute, OfFrozenBlocksIsFine) {
  Block block(at::kFloat);
  block.norm->set_trainable(false), block.w->set_trainable(false);
  at::Tensor y = recompute(normal({3, 10}, 1), std::ref(block));
  EXPECT_NO_THROW(backward({y}, {at::ones_like(y)}));
  EXPECT_FALSE(block.w->grad().defined());
}

TEST(Autograd, AGraphRunsOnce) {
  auto w = parameter(normal({6, 10}, 1), at::kFloat);
  at::Tensor y = linear(normal({2, 10}, 2), *w, nullptr, at::kFloat);
  backward({y}, {at::ones_like(y)});
  EXPECT_ANY_THROW(backward({y}, {at::ones_like(y)}));
}

class Leaf : public Module {
 public:
  explicit Leaf(std::string name) : Module(std::move(name)) { w = add_parameter("weight", {2, 3}); }
  int forward(std::ostringstream& log) {
    return run([&] { return log << "[" << this->name() << "]", 1; });
  }
  Parameter* w;
};

class Tree : public Module {
 public:
  Tree() : Module("") {
    shared = add_parameter("shared", {4});
    a = add_module<Leaf>("a");
    b = add_module<Leaf>("b.0");
    share_parameter(shared);
  }
  int forward(std::ostringstream& log) {
    return run([&] { return a->forward(log) + b->forward(log); });
  }
  Parameter* shared;
  Leaf *a, *b;
};

TEST(Module, HooksSurroundForwardInOrder) {
  Tree t;
  std::ostringstream log;
  for (Module* m : t.modules()) {
    m->add_forward_pre_hook([&](Module& x) { log << "<" << x.name(); });
    m->add_forward_pre_hook([&](Module&) { log << "2"; });
    m->add_forward_hook([&](Module& x) { log << x.name() << ">"; });
  }
  EXPECT_EQ(t.forward(log), 2);
  EXPECT_EQ(log.str(), "<2<a2[a]a><b.02[b.0]b.0>>");
}

TEST(Module, NamesParametersOnce) {
  Tree t;
  std::vector<std::string> names;
  for (Parameter* p : t.parameters()) names.push_back(p->name());
  EXPECT_EQ(names, (std::vector<std::string>{"shared", "a.weight", "b.0.weight"}));
}

}  // namespace
}  // namespace weft::nn
