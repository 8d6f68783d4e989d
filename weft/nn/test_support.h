#pragma once
// For the tests of nn and model: data, and one op run forward and backward through kernels, compositions and finite differences.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "weft/base/random.h"
#include "weft/nn/autograd.h"
#include "weft/nn/parameter.h"

namespace weft::nn::testing {

inline at::Tensor normal(std::vector<int64_t> shape, uint64_t seed, float scale = 1.0f) {
  at::Tensor t = at::empty(shape, at::kFloat);
  const CounterRng rng(seed);
  for (int64_t i = 0; i < t.numel(); ++i)
    t.data_ptr<float>()[i] = scale * static_cast<float>(rng.normal(static_cast<uint64_t>(i)));
  return t;
}

inline std::unique_ptr<Parameter> parameter(const at::Tensor& value, at::ScalarType dtype,
                                            Precision precision = Precision::kParamDtype) {
  auto p = std::make_unique<Parameter>("weight", value.sizes().vec(), precision);
  p->materialize(at::kCPU, dtype);
  p->master().copy_(value);
  p->updated();
  return p;
}

class ForcedCompositions {
 public:
  ForcedCompositions() { force_compositions(kEveryOp); }
  ~ForcedCompositions() { force_compositions(kNoOp); }
};

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         (x.numel() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), static_cast<size_t>(x.numel()) * x.element_size()) == 0);
}

// Largest difference, in units of the largest element of `expected`.
inline double relative(const at::Tensor& ours, const at::Tensor& expected) {
  if (ours.sizes() != expected.sizes()) return INFINITY;
  if (ours.numel() == 0) return 0;
  const at::Tensor a = ours.to(at::kDouble), b = expected.to(at::kDouble);
  const double largest = b.abs().max().item<double>(), d = (a - b).abs().max().item<double>();
  if (std::isnan(d)) return INFINITY;
  return largest > 0 ? d / largest : d;
}

// An op on leaves and parameters, with a fixed gradient for each of its outputs.
struct OpCase {
  std::vector<at::Tensor> inputs;  // differentiable
  std::vector<Parameter*> params;
  std::function<Grads(const std::vector<at::Tensor>&)> op;
};

struct OpResult {
  Grads outputs, input_grads, param_grads;
};

inline at::Tensor cotangent(const at::Tensor& y, size_t i) { return normal(y.sizes().vec(), 900 + i).to(y.scalar_type()); }

inline OpResult run_op(const OpCase& c) {
  at::AutoGradMode on(true);
  OpResult r;
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& t : c.inputs) leaves.push_back(t.detach().clone().set_requires_grad(true));
  for (Parameter* p : c.params) p->zero_grad();
  r.outputs = c.op(leaves);
  Grads dy;
  for (size_t i = 0; i < r.outputs.size(); ++i) dy.push_back(cotangent(r.outputs[i], i));
  backward(r.outputs, dy);
  for (at::Tensor& y : r.outputs) y = y.detach();
  for (const at::Tensor& t : leaves) r.input_grads.push_back(t.grad().defined() ? t.grad() : at::zeros_like(t));
  for (Parameter* p : c.params) r.param_grads.push_back(p->mutable_grad().clone());
  return r;
}

inline void expect_close(const OpResult& ours, const OpResult& expected, double tolerance) {
  for (size_t i = 0; i < ours.outputs.size(); ++i)
    EXPECT_LE(relative(ours.outputs[i], expected.outputs[i]), tolerance) << "output " << i;
  for (size_t i = 0; i < ours.input_grads.size(); ++i)
    EXPECT_LE(relative(ours.input_grads[i], expected.input_grads[i]), tolerance) << "gradient of input " << i;
  for (size_t i = 0; i < ours.param_grads.size(); ++i)
    EXPECT_LE(relative(ours.param_grads[i], expected.param_grads[i]), tolerance) << "gradient of parameter " << i;
}

// fp32: both sides sum at most a few hundred products in other orders, each about 1e-7 off.
inline constexpr double kFp32 = 2e-5;
// bf16: results and input gradients are rounded to 8 bits on both sides, the compositions' products once more.
inline constexpr double kBf16 = 0.03;

inline void expect_kernels_match_compositions(const OpCase& c, double tolerance) {
  const OpResult ours = run_op(c);
  ForcedCompositions guard;
  expect_close(ours, run_op(c), tolerance);
}

// sum of outputs * cotangents, in double.
inline double objective(const OpCase& c) {
  at::NoGradGuard guard;
  double sum = 0;
  const Grads y = c.op(c.inputs);
  for (size_t i = 0; i < y.size(); ++i) sum += (y[i].to(at::kDouble) * cotangent(y[i], i).to(at::kDouble)).sum().item<double>();
  return sum;
}

// Central differences of fp32 ops at `samples` elements a tensor. A step of 1e-2 leaves about 1e-4 of curvature and 1e-4 of
// rounding.
inline void expect_finite_differences(const OpCase& c, int samples = 12) {
  constexpr float kStep = 1e-2f;
  const OpResult r = run_op(c);
  auto check = [&](at::Tensor value, const at::Tensor& grad, const std::function<void()>& changed, const char* what,
                   size_t index) {
    if (value.numel() == 0) return;
    const double largest = grad.abs().max().item<double>();
    EXPECT_GT(largest, 0) << what << " " << index;
    const CounterRng rng(77 + index);
    for (int s = 0; s < samples; ++s) {
      const auto i = static_cast<int64_t>(rng.below(static_cast<uint64_t>(s), static_cast<uint64_t>(value.numel())));
      float& x = value.data_ptr<float>()[i];
      const float kept = x;
      x = kept + kStep;
      changed();
      const double up = objective(c);
      x = kept - kStep;
      changed();
      const double down = objective(c);
      x = kept;
      changed();
      const double numeric = (up - down) / (2.0 * kStep);
      EXPECT_NEAR(grad.data_ptr<float>()[i], numeric, 5e-3 * std::max(1.0, largest)) << what << " " << index << " element " << i;
    }
  };
  for (size_t i = 0; i < c.inputs.size(); ++i)
    check(
        c.inputs[i], r.input_grads[i], [] {}, "input", i);
  for (size_t i = 0; i < c.params.size(); ++i)
    check(
        c.params[i]->master(), r.param_grads[i], [p = c.params[i]] { p->updated(); }, "parameter", i);
}

}  // namespace weft::nn::testing
