#include "weft/train/rollout_role.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "weft/base/error.h"
#include "weft/model/int8_weights.h"
#include "weft/model/parallelize.h"
#include "weft/nn/arena_tensor.h"
#include "weft/nn/view.h"
#include "weft/parallel/fully_shard.h"

namespace weft {
namespace {

constexpr const char* kNoWeights =
    "the rollout has no valid weights: the actor has changed since the last refit, or a refit failed";

TensorPart part_of(const at::Tensor& t, const at::Tensor& scales = {}) {
  const DType dtype = t.scalar_type() == at::kChar ? DType::kI8 : nn::dtype_of(t);
  return {static_cast<std::byte*>(t.data_ptr()), dtype, t.sizes().vec(), scales.defined() ? scales.data_ptr<float>() : nullptr};
}

}  // namespace

std::vector<RefitTensor> refit_tensors(const ModelConfig& config, at::ScalarType rollout_dtype, const RolePlaces& places,
                                       bool sequence_parallel, const std::vector<std::string>& actor_plan, bool int8) {
  const CausalLM model(config, rollout_dtype);  // names and shapes, without memory
  const std::vector<nn::Parameter*> all = model.parameters();
  const ShardingPlan plan = plan_of(config, places.actor.dims, sequence_parallel, actor_plan, {all.begin(), all.end()});
  const std::vector<int> both = RolePlaces::both(places.actor, places.rollout);
  const auto numbered = [&](const RolePlace& role) {
    std::vector<int> out;
    for (int r : role.ranks) out.push_back(static_cast<int>(std::lower_bound(both.begin(), both.end(), r) - both.begin()));
    return out;
  };
  const std::vector<int> from = numbered(places.actor), to = numbered(places.rollout);
  std::vector<RefitTensor> out;
  for (const nn::Parameter* p : all)
    out.push_back({p->name(), p->shape(),
                   int8 && int8_in_rollout(p->name())              ? DType::kI8
                   : p->compute_dtype(rollout_dtype) == at::kFloat ? DType::kF32
                                                                   : DType::kBF16,
                   holder_sets_of(place_parameter(plan, places.actor.dims, p->name(), p->shape()).layout, from),
                   holder_sets_of(rollout_layout(config, places.rollout.dims, *p), to)});
  return out;
}

RolloutRole::RolloutRole(const Recipe& recipe, const ModelConfig& config, at::ScalarType actor_dtype, CausalLM* actor,
                         const Roles& roles, const std::function<std::unique_ptr<Engine>(CausalLM&)>& make_engine,
                         const RolloutArenas& memory)
    : actor_(actor), mesh_(roles.rollout), memory_(memory) {
  const std::string& name = recipe.rollout.dtype;
  int8_ = name == "int8";
  const at::ScalarType dtype = name == "auto" || int8_ ? actor_dtype : name == "float32" ? at::kFloat : at::kBFloat16;
  if (!roles.world) {
    if (int8_)
      throw UsageError(
          "rollout.dtype = \"int8\": on one rank the rollout runs on the actor's own weights; leave it, or train on two ranks "
          "(actor.mesh = \"fsdp=2\")");
    if (dtype != actor_dtype)
      throw UsageError(
          fmt::format("rollout.dtype = \"{}\": on one rank the rollout runs on the actor's own weights; leave it, or set "
                      "actor.param_dtype",
                      name));
    engine_ = make_engine(*actor);
    shares_ = true;
    return;
  }
  const RolePlaces& places = roles.places;
  in_place_ = recipe.refit.mode == "in_place" || (recipe.refit.mode == "auto" && places.colocated());
  if (mesh_) {
    model_ = std::make_unique<CausalLM>(config, dtype);
    place_for_rollout(*model_, mesh_);
    model_->set_memory({memory.weights, memory.panels, nullptr});
    // In the memory of the actor, where both have the same part in the same type and the rollout may lose it.
    const auto equal = [&](const nn::Parameter* p) {
      const nn::Parameter* trained = actor ? actor->find_parameter(p->name()) : nullptr;
      return in_place_ && trained && !(int8_ && int8_in_rollout(p->name())) &&
             trained->local_compute().scalar_type() == p->compute_dtype(dtype) &&
             rollout_layout(config, mesh_->dims, *p).boxes(mesh_->rank()) == local_boxes(*trained);
    };
    const std::vector<nn::Parameter*> all = model_->parameters();
    int64_t share = !memory.sleeps || std::all_of(all.begin(), all.end(), equal);
    // What sleeps in a phase is the same on all ranks.
    if (memory.sleeps) mesh_->world.all_reduce(&share, &share, 1, DType::kI64, ReduceOp::kMin, "refit").wait();
    for (nn::Parameter* p : all) {
      const bool shared = share != 0 && equal(p);
      shares_ = shares_ || shared;
      if (shared)
        p->freeze(at::kCPU, dtype, actor->find_parameter(p->name())->local_compute(), memory.actor_weights);
      else if (int8_ && int8_in_rollout(p->name()))
        p->freeze_int8(at::kCPU, dtype);
      else
        p->freeze(at::kCPU, dtype);
    }
    engine_ = make_engine(*model_);
    engine_->forbid(kNoWeights);
  }
  const std::vector<int> both = RolePlaces::both(places.actor, places.rollout);
  if (!std::binary_search(both.begin(), both.end(), roles.world->rank())) return;
  both_ = std::ssize(both) == roles.world->size() ? *roles.world : roles.world->sub(both, "refit");
  RefitOptions options;
  options.watermark = recipe.refit.watermark_mb * 1'000'000;
  options.verify = recipe.refit.verify;
  options.progress = [this](int64_t done, int64_t of) {
    if (progress_) progress_(done, of);
  };
  refit_ = std::make_unique<Refit>(refit_tensors(config, dtype, places, recipe.actor.sequence_parallel, recipe.actor.plan, int8_),
                                   *both_, options);
  for (const RefitTensor& t : refit_->tensors()) needed_bytes_ += missing_bytes(t, both_->rank());
}

RolloutShare RolloutRole::share() const {
  if (!engine_) return {};
  if (!mesh_) return {engine_.get(), 0, 1, true};
  return {engine_.get(), mesh_->data.rank(), mesh_->data.size(), mesh_->tp.rank() == 0};
}

void RolloutRole::actor_changes() {
  if (in_place_ && model_) engine_->forbid(kNoWeights);
}

// A second set beside the live one.
void RolloutRole::check_memory() const {
  double bytes = 0;
  if (model_)
    for (nn::Parameter* p : model_->parameters())
      bytes += static_cast<double>(p->local_compute().nbytes() + (p->row_scales().defined() ? p->row_scales().nbytes() : 0));
  // Ranks of one process share what there is.
  const double ranks = both_->shares_memory() ? both_->size() : 1;
  double missing = bytes * ranks - static_cast<double>(available_());
  both_->all_reduce(&missing, &missing, 1, DType::kF64, ReduceOp::kMax, "refit_checks").wait();
  if (missing > 0)
    throw SystemError(
        fmt::format("refit: a rank has {:.1f} MB too little memory for a second set of the rollout's weights beside "
                    "the live one; refit.mode = \"in_place\" needs none. The rollout keeps version {}",
                    missing / 1e6, version_));
}

RefitReport RolloutRole::refit(int64_t version) {
  RefitReport report;
  if (refit_) {
    at::NoGradGuard guard;
    if (!in_place_) check_memory();
    std::vector<TensorPart> sources, destinations;
    const bool beside = !in_place_ && model_;
    if (beside && memory_.other_weights) memory_.other_weights->wake();
    for (const RefitTensor& t : refit_->tensors()) {
      // Of the type that travels, where the actor has it rounded already.
      const nn::Parameter* trained = actor_ ? actor_->find_parameter(t.name) : nullptr;
      if (trained) trained->require_weights();
      const bool rounded = trained && nn::dtype_of(trained->local_compute()) == t.dtype;
      sources.push_back(trained ? part_of(rounded ? trained->local_compute() : trained->master())
                                : TensorPart{nullptr, t.dtype, {}});
      nn::Parameter* p = model_ ? model_->find_parameter(t.name) : nullptr;
      const size_t i = destinations.size();
      if (beside && spare_.size() == i) {
        spare_.push_back(nn::arena_tensor(memory_.other_weights, p->local_shape(), p->local_compute().scalar_type()));
        spare_scales_.emplace_back();
        if (p->row_scales().defined())
          spare_scales_[i] = nn::arena_tensor(memory_.other_weights, p->row_scales().sizes().vec(), at::kFloat);
      }
      destinations.push_back(!p       ? TensorPart{nullptr, t.dtype, {}}
                             : beside ? part_of(spare_[i], spare_scales_[i])
                                      : part_of(p->local_compute(), p->row_scales()));
    }
    if (in_place_ && engine_) engine_->forbid(kNoWeights);
    report = refit_->run(sources, destinations);
    if (beside) std::swap(memory_.weights, memory_.other_weights);
    for (size_t i = 0; model_ && i < refit_->tensors().size(); ++i) {
      nn::Parameter* p = model_->find_parameter(refit_->tensors()[i].name);
      if (!beside) {
        p->rewritten();
        continue;
      }
      const at::Tensor old = p->local_compute(), old_scales = p->row_scales();
      if (old_scales.defined())
        p->freeze_int8(at::kCPU, model_->param_dtype(), std::move(spare_[i]), std::move(spare_scales_[i]), memory_.weights);
      else
        p->freeze(at::kCPU, model_->param_dtype(), std::move(spare_[i]), memory_.weights);
      spare_[i] = old, spare_scales_[i] = old_scales;
    }
    if (beside && memory_.other_weights)
      memory_.other_weights->discard();
    else
      spare_.clear(), spare_scales_.clear();
    if (model_ && memory_.weights) memory_.weights->filled();
  }
  version_ = version;
  if (engine_) {
    engine_->weights_changed(version);
    engine_->allow();
  }
  return report;
}

}  // namespace weft
