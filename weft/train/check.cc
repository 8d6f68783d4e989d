#include "weft/train/check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "weft/base/error.h"
#include "weft/checkpoint/parameter_part.h"
#include "weft/io/safetensors.h"
#include "weft/nn/autograd.h"
#include "weft/nn/moe.h"
#include "weft/parallel/fully_shard.h"
#include "weft/train/data_parallel.h"
#include "weft/train/packed_micro_batch.h"

namespace weft {
namespace {

constexpr int64_t kGreedyPrompt = 7;

// Keeps what every MoE layer saw and chose.
class RecordingRouting : public Routing {
 public:
  struct Layer {
    at::Tensor logits, ids, gates;
  };
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
  // fp32, or int64 where `integer`; -1 in `shape`: any size. FileError for others.
  at::Tensor get(const std::string& name, const std::vector<int64_t>& shape, bool integer = false) const {
    const TensorInfo& info = file_.tensor(name);
    const auto fits = [](int64_t want, int64_t is) { return want == -1 || want == is; };
    if (!std::equal(shape.begin(), shape.end(), info.shape.begin(), info.shape.end(), fits))
      throw FileError(file_.path(), name,
                      fmt::format("has shape {}, expected {} (-1: any)", shape_text(info.shape), shape_text(shape)));
    if (info.dtype != (integer ? DType::kI64 : DType::kF32))
      throw FileError(file_.path(), name,
                      fmt::format("has dtype {}, expected {}", dtype_name(info.dtype), integer ? "int64" : "float32"));
    at::Tensor t = at::empty(info.shape, integer ? at::kLong : at::kFloat);
    const auto bytes = file_.bytes(info);
    if (!bytes.empty()) std::memcpy(t.data_ptr(), bytes.data(), bytes.size());
    return t;
  }
  // [rows, n] of tokens, each row at least `least` of them.
  std::vector<std::vector<int32_t>> tokens(const std::string& name, int64_t rows, int64_t least, int64_t vocab) const {
    const at::Tensor ids = get(name, {rows, -1}, true);
    if (ids.size(0) < 1 || ids.size(1) < least)
      throw FileError(file_.path(), name,
                      fmt::format("has shape {}, expected at least [1, {}]", shape_text(ids.sizes().vec()), least));
    std::vector<std::vector<int32_t>> out(static_cast<size_t>(ids.size(0)));
    for (int64_t i = 0; i < ids.numel(); ++i) {
      const int64_t id = ids.data_ptr<int64_t>()[i];
      if (id < 0 || id >= vocab)
        throw FileError(file_.path(), name, fmt::format("token {} is outside the vocabulary of {}", id, vocab));
      out[static_cast<size_t>(i / ids.size(1))].push_back(static_cast<int32_t>(id));
    }
    return out;
  }
  // Tolerances grow with it: FileError for what would let everything pass.
  double noise(const std::string& field) const {
    const std::string name = "noise/" + field;
    if (!has(name)) return 0;
    const double noise = get(name, {}).item<float>();
    if (!std::isfinite(noise) || noise < 0)
      throw FileError(file_.path(), name, fmt::format("is {}: expected a finite number, 0 or more", noise));
    return noise;
  }
  // FileError for tensors that are none of `known`: a misspelt one would never be compared.
  void expect_only(const std::set<std::string>& known) const {
    std::vector<std::string> others;
    for (const TensorInfo& t : file_.tensors())
      if (!known.count(t.name)) others.push_back(t.name);
    if (others.empty()) return;
    const size_t shown = std::min<size_t>(others.size(), 20);
    throw FileError(file_.path(), "",
                    fmt::format("has {} tensors that are compared with nothing of this model: {}{}", others.size(),
                                fmt::join(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                                shown < others.size() ? ", ..." : ""));
  }
  const SafetensorsFile& file() const { return file_; }

 private:
  SafetensorsFile file_;
};

// The larger one; NaN, as between infinities, is worse than any number.
double worse(double a, double b) { return std::isnan(a) || std::isnan(b) ? INFINITY : std::max(a, b); }

double max_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0.0;
  return worse(0, (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>());
}

// Rows `rows` from `first` on of a golden whose leading dims are [B, S] flattened.
at::Tensor take_rows(const at::Tensor& golden, const std::vector<int64_t>& rows, int64_t first) {
  at::Tensor index = at::empty({static_cast<int64_t>(rows.size())}, at::kLong);
  for (size_t i = 0; i < rows.size(); ++i) index.data_ptr<int64_t>()[i] = rows[i] + first;
  return at::index_select(golden, 0, index);
}

// A sequence whose every token is fed, as a trajectory: what would follow is never looked at.
Trajectory fed_whole(const std::vector<int32_t>& tokens) {
  Trajectory t;
  t.temperature = 1;
  t.prompt_ids = {tokens[0]};
  t.response_ids.assign(tokens.begin() + 1, tokens.end());
  t.response_ids.push_back(0);
  return t;
}

// On a mesh every rank holds the rows and the parts of gradients that it has to the golden; the largest difference of all ranks
// counts.
class Checker {
 public:
  Checker(LoadedModel& m, const Golden& golden, const CheckOptions& options) : m_(m), golden_(golden), options_(options) {}

  CheckReport run() {
    check_names();
    forward();
    gradients();
    greedy();
    if (m_.mesh)
      for (CheckRow& r : report_.rows)
        m_.mesh->world.all_reduce(&r.difference, &r.difference, 1, DType::kF64, ReduceOp::kMax, "check").wait();
    for (CheckRow& r : report_.rows) r.ok = std::isfinite(r.difference) && r.difference <= r.tolerance;
    return std::move(report_);
  }

 private:
  void add(const std::string& field, double difference, double tolerance) {
    report_.rows.push_back({field, worse(0, difference), tolerance, false});
  }
  void check_names() const {
    std::set<std::string> known = {"input_ids", "logits", "logprobs", "loss", "greedy"};
    for (const char* field : {"logits", "logprobs", "grad"}) {
      (void)golden_.noise(field);
      known.insert(std::string("noise/") + field);
    }
    for (int64_t layer : m_.model->config().moe_layer_ids())
      for (const char* field : {"router_topk", "router_weights", "router_logits"})
        known.insert(fmt::format("{}/{}", field, layer));
    for (const WeightEntry& e : m_.entries) known.insert("grad/" + e.name);
    golden_.expect_only(known);
  }
  bool want(const std::string& field) {
    if (golden_.has(field)) return true;
    report_.not_compared.push_back(field);
    return false;
  }
  // Over the ranks that have other tokens.
  double sum(double mine) const {
    if (!m_.mesh) return mine;
    m_.mesh->world.all_reduce(&mine, &mine, 1, DType::kF64, ReduceOp::kSum, "check").wait();
    return mine / m_.mesh->tp.size();
  }

  void forward() {
    CausalLM& model = *m_.model;
    const int64_t vocab = model.config().vocab_size;
    std::vector<Trajectory> sequences;
    std::vector<const Trajectory*> list;
    for (const std::vector<int32_t>& tokens : golden_.tokens("input_ids", -1, 2, vocab)) sequences.push_back(fed_whole(tokens));
    const int64_t batch = std::ssize(sequences), length = std::ssize(sequences[0].response_ids);
    for (const Trajectory& t : sequences) list.push_back(&t);
    const DataParallel::Share share = DataParallel(m_.mesh).share(list, std::numeric_limits<int64_t>::max());
    const int64_t first = static_cast<int64_t>(share.begin[share.mine]);  // sequence
    const PackedMicroBatch p(model, share.micro_batches.at(0), nullptr);
    const std::unique_ptr<nn::AttentionContext> attention = p.attention();
    RecordingRouting routing;
    at::Tensor hidden = model.final_norm(model.forward(p.batch(), *attention, routing));

    const double lp_tolerance = std::max(options_.logits_tolerance, 4 * golden_.noise("logprobs"));
    if (want("logits"))
      add("logits",
          max_difference(model.logits(hidden).to(at::kCPU),
                         take_rows(golden_.get("logits", {batch, length, vocab}).reshape({batch * length, vocab}), p.fed_rows(),
                                   first * length)),
          std::max(options_.logits_tolerance, 4 * golden_.noise("logits")));

    // Through the fused head; the last row of a sequence predicts nothing that is known.
    at::Tensor lp = model.log_probs(at::index_select(hidden, 0, p.head_index().to(hidden.device())), p.head(), false).log_probs;
    std::vector<int64_t> known, places;
    at::Tensor weights = at::empty({lp.size(0)}, at::kFloat);
    for (size_t i = 0; i < p.tokens().size(); ++i) {
      const int64_t sequence = p.tokens()[i] / length, next = p.tokens()[i] % length;
      weights.data_ptr<float>()[i] =
          next + 1 < length ? static_cast<float>(-1.0 / static_cast<double>(batch * (length - 1))) : 0.0f;
      if (next + 1 == length) continue;
      known.push_back(static_cast<int64_t>(i));
      places.push_back((first + sequence) * (length - 1) + next);
    }
    const at::Tensor host = take_rows(lp.detach().to(at::kCPU), known, 0);
    if (want("logprobs"))
      add("logprobs",
          max_difference(host,
                         take_rows(golden_.get("logprobs", {batch, length - 1}).reshape({batch * (length - 1)}), places, 0)),
          lp_tolerance);
    if (want("loss")) {
      const double loss = -sum(host.to(at::kDouble).sum().item<double>()) / static_cast<double>(batch * (length - 1));
      add("loss", std::fabs(loss - golden_.get("loss", {}).item<float>()), lp_tolerance);
    }
    for (auto& [layer, seen] : routing.layers) choices(layer, seen, p.own_rows(), first * length, batch * length);
    for (nn::Parameter* parameter : model.parameters()) parameter->zero_grad();
    nn::backward({lp}, {weights.to(lp.device())});
  }

  void choices(int64_t layer, const RecordingRouting::Layer& seen, const std::vector<int64_t>& rows, int64_t first, int64_t all) {
    const std::string suffix = fmt::format("/{}", layer);
    if (want("router_topk" + suffix))
      add("router_topk" + suffix,
          (seen.ids.to(at::kCPU).to(at::kLong) !=
           take_rows(golden_.get("router_topk" + suffix, {all, seen.ids.size(1)}, true), rows, first))
              .sum()
              .item<double>(),
          options_.exact_choices ? 0.0 : INFINITY);
    const double tolerance = options_.exact_choices ? std::max(options_.logits_tolerance, 4 * golden_.noise("logits")) : INFINITY;
    if (want("router_weights" + suffix))
      add("router_weights" + suffix,
          max_difference(seen.gates.to(at::kCPU),
                         take_rows(golden_.get("router_weights" + suffix, {all, seen.gates.size(1)}), rows, first)),
          tolerance);
    if (want("router_logits" + suffix)) {
      at::Tensor want_logits = golden_.get("router_logits" + suffix, {all, seen.logits.size(1)}), ours = seen.logits.to(at::kCPU);
      // Some families' router modules return softmax scores under this name.
      const bool scores =
          want_logits.min().item<float>() >= 0 && max_difference(want_logits.sum(1), at::ones({want_logits.size(0)})) < 1e-4;
      add("router_logits" + suffix, max_difference(scores ? at::softmax(ours, 1) : ours, take_rows(want_logits, rows, first)),
          tolerance);
    }
  }

  void gradients() {
    const double tolerance = std::max(options_.gradient_tolerance, 4 * golden_.noise("grad"));
    for (const WeightEntry& e : m_.entries) {
      const std::string field = "grad/" + e.name;
      if (!want(field)) continue;
      const at::Tensor golden = golden_.get(field, e.shape), whole = golden.reshape(e.box.size);
      const double largest = whole.numel() ? whole.abs().max().item<double>() : 0.0;
      nn::Parameter* p = m_.model->find_parameter(e.parameter);
      double difference = 0;
      for_each_piece({p->mutable_grad(), local_boxes(*p)}, e, [&](const at::Tensor& piece, const Box& box) {
        const at::Tensor ours = piece.to(at::kCPU), expected = narrow_to(whole, box);
        const bool zeros = at::where(expected == 0, ours.abs(), at::zeros_like(ours)).max().item<float>() == 0.0f;
        const double d = max_difference(ours, expected);
        difference = worse(difference, !zeros ? INFINITY : largest == 0 ? d : d / largest);
      });
      add(field, difference, tolerance);
    }
  }

  void greedy() {
    if (!want("greedy")) return;
    at::NoGradGuard guard;
    CausalLM& model = *m_.model;
    const std::vector<int32_t> expected = golden_.tokens("greedy", 1, kGreedyPrompt + 1, model.config().vocab_size)[0];
    std::vector<int32_t> tokens(expected.begin(), expected.begin() + kGreedyPrompt);
    while (tokens.size() < expected.size()) {
      const Trajectory sequence = fed_whole(tokens);
      const Trajectory* const list[] = {&sequence};
      const PackedMicroBatch p(model, list, nullptr);
      LiveRouting routing;
      const at::Tensor hidden = model.forward(p.batch(), *p.attention(), routing);
      std::vector<int64_t> last;  // its row, on the rank of cp that has it
      for (size_t i = 0; i < p.fed_rows().size(); ++i)
        if (p.fed_rows()[i] == std::ssize(tokens) - 1) last.push_back(static_cast<int64_t>(i));
      const at::Tensor logits = model.logits(model.final_norm(take_rows(hidden, last, 0)));
      int64_t next = last.empty() ? -1 : logits.argmax().item<int64_t>();
      if (m_.mesh) m_.mesh->world.all_reduce(&next, &next, 1, DType::kI64, ReduceOp::kMax, "check").wait();
      tokens.push_back(static_cast<int32_t>(next));
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
  out += fmt::format("{} of {} fields within tolerance\n",
                     std::count_if(rows.begin(), rows.end(), [](const CheckRow& r) { return r.ok; }), rows.size());
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
