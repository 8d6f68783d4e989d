#include "weft/train/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "weft/base/error.h"
#include "weft/checkpoint/hf_weights.h"
#include "weft/io/safetensors.h"
#include "weft/nn/autograd.h"
#include "weft/nn/moe.h"

namespace weft {
namespace {

constexpr int64_t kGreedyPrompt = 7;

// Keeps what every MoE layer saw and chose.
class RecordingRouting : public Routing {
 public:
  struct Layer { at::Tensor logits, ids, gates; };
  at::Tensor route(int64_t layer, const at::Tensor& logits, const kernels::RouterParams& params) override {
    at::NoGradGuard guard;
    at::Tensor ids = nn::router_select(logits, params);
    layers[layer] = {logits.detach(), ids, nn::router_gates(logits.detach(), ids, params)};
    return ids;
  }
  std::map<int64_t, Layer> layers;
};

class Golden {
 public:
  explicit Golden(const std::string& path) : file_(path) {}
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  at::Tensor get(const std::string& name) const {
    const TensorInfo& info = file_.tensor(name);
    const bool integer = info.dtype == DType::kI64;
    if (!integer && info.dtype != DType::kF32) throw FileError(file_.path(), name, "expected float32 or int64");
    at::Tensor t = at::empty(info.shape, integer ? at::kLong : at::kFloat);
    const auto bytes = file_.bytes(info);
    if (!bytes.empty()) std::memcpy(t.data_ptr(), bytes.data(), bytes.size());
    return t;
  }
  double noise(const std::string& field) const { return has("noise/" + field) ? get("noise/" + field).item<float>() : 0.0; }
  const SafetensorsFile& file() const { return file_; }

 private:
  SafetensorsFile file_;
};

double max_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0.0;
  const double d = (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
  return std::isnan(d) ? INFINITY : d;
}

std::vector<int32_t> row_of(const at::Tensor& ids, int64_t b) {
  const int64_t* p = ids.data_ptr<int64_t>() + b * ids.size(1);
  return std::vector<int32_t>(p, p + ids.size(1));
}

class Checker {
 public:
  Checker(LoadedModel& m, const Golden& golden, const CheckOptions& options) : m_(m), golden_(golden), options_(options) {}

  CheckReport run() {
    forward();
    gradients();
    greedy();
    return std::move(report_);
  }

 private:
  void add(const std::string& field, double difference, double tolerance) {
    report_.rows.push_back({field, difference, tolerance, difference <= tolerance});
  }
  bool want(const std::string& field) {
    if (golden_.has(field)) return true;
    report_.not_compared.push_back(field);
    return false;
  }

  void forward() {
    CausalLM& model = *m_.model;
    at::Tensor ids = golden_.get("input_ids");
    if (ids.dim() != 2) throw FileError(golden_.file().path(), "input_ids", "expected two dims [batch, sequence]");
    const int64_t batch = ids.size(0), length = ids.size(1), vocab = model.config().vocab_size;
    std::vector<std::vector<int32_t>> tokens;
    std::vector<SequenceSpan> spans;
    for (int64_t b = 0; b < batch; ++b) tokens.push_back(row_of(ids, b));
    for (const auto& t : tokens) spans.push_back({t, 0, length});
    const TokenBatch packed = TokenBatch::pack(spans, model.config().history());
    nn::PackedAttention attention(model.attention_shape(), packed.offsets);
    RecordingRouting routing;
    at::Tensor hidden = model.final_norm(model.forward(packed, attention, routing));

    const double lp_tolerance = std::max(options_.logits_tolerance, 4 * golden_.noise("logprobs"));
    if (want("logits"))
      add("logits", max_difference(model.logits(hidden).reshape({batch, length, vocab}).to(at::kCPU), golden_.get("logits")),
          std::max(options_.logits_tolerance, 4 * golden_.noise("logits")));

    // Rows that have a next token, through the fused head.
    auto rows = std::make_shared<nn::HeadRows>();
    at::Tensor index = at::empty({batch * (length - 1)}, at::kLong);
    for (int64_t b = 0, r = 0; b < batch; ++b)
      for (int64_t t = 0; t + 1 < length; ++t, ++r) {
        index.data_ptr<int64_t>()[r] = b * length + t;
        rows->rows.push_back({tokens[static_cast<size_t>(b)][static_cast<size_t>(t + 1)], 1.0f, nullptr, nullptr});
      }
    at::Tensor lp = model.log_probs(at::index_select(hidden, 0, index.to(hidden.device())), rows, false).log_probs;
    at::Tensor host = lp.detach().to(at::kCPU);
    if (want("logprobs")) add("logprobs", max_difference(host.reshape({batch, length - 1}), golden_.get("logprobs")), lp_tolerance);
    if (want("loss")) add("loss", std::fabs(-host.to(at::kDouble).mean().item<double>() - golden_.get("loss").item<float>()), lp_tolerance);
    for (auto& [layer, seen] : routing.layers) choices(layer, seen);
    for (nn::Parameter* p : model.parameters()) p->zero_grad();
    nn::backward({lp}, {at::full(lp.sizes(), -1.0 / static_cast<double>(lp.numel()), lp.options())});
  }

  void choices(int64_t layer, const RecordingRouting::Layer& seen) {
    const std::string suffix = fmt::format("/{}", layer);
    if (want("router_topk" + suffix))
      add("router_topk" + suffix, (seen.ids.to(at::kCPU).to(at::kLong) != golden_.get("router_topk" + suffix)).sum().item<double>(),
          options_.exact_choices ? 0.0 : INFINITY);
    const double tolerance = options_.exact_choices ? std::max(options_.logits_tolerance, 4 * golden_.noise("logits")) : INFINITY;
    if (want("router_weights" + suffix))
      add("router_weights" + suffix, max_difference(seen.gates.to(at::kCPU), golden_.get("router_weights" + suffix)), tolerance);
    if (want("router_logits" + suffix)) {
      at::Tensor want_logits = golden_.get("router_logits" + suffix), ours = seen.logits.to(at::kCPU);
      // Some families' router modules return softmax scores under this name.
      const bool scores = want_logits.min().item<float>() >= 0 && max_difference(want_logits.sum(1), at::ones({want_logits.size(0)})) < 1e-4;
      add("router_logits" + suffix, max_difference(scores ? at::softmax(ours, 1) : ours, want_logits), tolerance);
    }
  }

  void gradients() {
    const double tolerance = std::max(options_.gradient_tolerance, 4 * golden_.noise("grad"));
    for (const WeightEntry& e : m_.entries) {
      const std::string field = "grad/" + e.name;
      if (!want(field)) continue;
      at::Tensor expected = golden_.get(field);
      nn::Parameter* p = m_.model->find_parameter(e.parameter);
      at::Tensor ours = narrow_to(p->mutable_grad().to(at::kCPU), e.box).reshape(e.shape);
      const double largest = expected.numel() ? expected.abs().max().item<double>() : 0.0;
      const bool zeros = at::where(expected == 0, ours.abs(), at::zeros_like(ours)).max().item<float>() == 0.0f;
      const double difference = max_difference(ours, expected);
      add(field, !zeros ? INFINITY : largest > 0 ? difference / largest : difference, tolerance);
    }
  }

  void greedy() {
    if (!want("greedy")) return;
    at::NoGradGuard guard;
    CausalLM& model = *m_.model;
    const std::vector<int32_t> expected = row_of(golden_.get("greedy"), 0);
    std::vector<int32_t> tokens(expected.begin(), expected.begin() + kGreedyPrompt);
    while (tokens.size() < expected.size()) {
      const SequenceSpan span{tokens, 0, static_cast<int64_t>(tokens.size())};
      const TokenBatch batch = TokenBatch::pack({&span, 1}, model.config().history());
      nn::PackedAttention attention(model.attention_shape(), batch.offsets);
      LiveRouting routing;
      at::Tensor last = model.forward(batch, attention, routing).narrow(0, batch.num_tokens() - 1, 1);
      tokens.push_back(static_cast<int32_t>(model.logits(model.final_norm(last)).argmax().item<int64_t>()));
    }
    double differ = 0;
    for (size_t i = 0; i < tokens.size(); ++i) differ += tokens[i] != expected[i];
    add("greedy", differ, options_.exact_choices ? 0.0 : INFINITY);
  }

  LoadedModel& m_;
  const Golden& golden_;
  CheckOptions options_;
  CheckReport report_;
};

}  // namespace

bool CheckReport::ok() const {
  return !rows.empty() && std::all_of(rows.begin(), rows.end(), [](const CheckRow& r) { return r.ok; });
}

std::string CheckReport::table(bool all) const {
  std::vector<CheckRow> shown, gradients;
  for (const CheckRow& r : rows) (r.field.starts_with("grad/") ? gradients : shown).push_back(r);
  std::stable_sort(gradients.begin(), gradients.end(),
                   [](const CheckRow& a, const CheckRow& b) { return a.difference / a.tolerance > b.difference / b.tolerance; });
  const size_t hidden = all || gradients.size() <= 5 ? 0 : gradients.size() - 5;
  shown.insert(shown.end(), gradients.begin(), gradients.end() - static_cast<std::ptrdiff_t>(hidden));
  size_t width = 5;
  for (const CheckRow& r : shown) width = std::max(width, r.field.size());
  std::string out = fmt::format("{:<{}}  {:>12}  {:>10}\n", "field", width, "difference", "tolerance");
  for (const CheckRow& r : shown)
    out += fmt::format("{:<{}}  {:>12.3g}  {:>10.3g}  {}\n", r.field, width, r.difference, r.tolerance, r.ok ? "ok" : "FAILED");
  if (hidden) out += fmt::format("and {} gradients with smaller differences (--all lists them)\n", hidden);
  if (!not_compared.empty()) out += fmt::format("not compared, the golden lacks: {}\n", fmt::join(not_compared, ", "));
  out += fmt::format("{} of {} fields within tolerance\n", std::count_if(rows.begin(), rows.end(), [](const CheckRow& r) { return r.ok; }),
                     rows.size());
  return out;
}

CheckOptions bf16_check_options() {
  CheckOptions o;
  o.logits_tolerance = 0.125;
  o.gradient_tolerance = 0.25;
  o.exact_choices = false;
  return o;
}

CheckReport check_model(LoadedModel& m, const std::string& golden_path, const CheckOptions& options) {
  const Golden golden(golden_path);
  return Checker(m, golden, options).run();
}

}  // namespace weft
