#pragma once
// The parameters of one fully_shard call: when they are gathered, given back, and their gradients reduced. What a parameter is
// (weft's own or libtorch's) and when a backward begins and ends is for the classes derived from it.
//
// Memory: at most two groups but the outermost are gathered at a time (the one at work and the next, prefetched), and at most one
// group's full gradients wait while another's are in reduction.
//
// Every method marked "collective" is called by all ranks of the mesh, in one order. One thread a rank.

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "weft/mesh/layout.h"
#include "weft/mesh/sharding_plan.h"
#include "weft/parallel/distributed_tensor.h"
#include "weft/parallel/rank_mesh.h"
#include "weft/parallel/shard_cut.h"

namespace weft {

struct ShardOptions {
  // Give the gathered parameters back after the module's forward and gather them again in the backward: false, true, or k: keep
  // 1/k of each among k neighbouring ranks, over which the backward gathers. k divides the number of shards; 1 is false, all is
  // true. Unset: true, but false in the outermost group, whose backward comes next.
  std::optional<std::variant<bool, int64_t>> reshard_after_forward;
  // What gradients travel in; they are accumulated in fp32.
  DType reduce_dtype = DType::kF32;
  // Gradients are summed over ranks and divided by this (FSDP2's default is the number of ranks; ours 1: losses divide by global
  // denominators).
  double gradient_divide_factor = 1;
  // What tp, ep and a model's own axes do to the parameters. Needed where the mesh has any.
  ShardingPlan plan = {};
};

// A parameter as its group sees it.
class ShardedTensor {
 public:
  virtual ~ShardedTensor() = default;
  virtual const std::string& name() const = 0;
  virtual std::vector<int64_t> shape() const = 0;  // of the whole
  virtual bool trainable() const = 0;
  virtual at::Tensor master() const = 0;  // this rank's part, as the optimizer sees it
  virtual at::Tensor local() = 0;         // the same in the dtype in which it travels
  virtual at::Tensor buffer() = 0;        // memory to gather to: what the plan left of the whole
  virtual bool gathered() const = 0;
  virtual at::Tensor full() = 0;                   // while it is gathered
  virtual void set_gathered(at::Tensor full) = 0;  // undefined gives it back
  virtual at::Tensor take_full_grad() = 0;         // what backward has added; undefined where nothing was
  virtual void add_grad(const at::Tensor& part) = 0;
};

class ShardGroup;
class ModuleTape;

// What the groups under one outermost module share.
struct ShardContext {
  std::vector<ShardGroup*> groups;   // in the order of their calls
  std::vector<ShardGroup*> forward;  // the order in which the first forward gathered them
  bool end_registered = false;       // of the backward that runs
  bool last_backward = true;
  ShardGroup* reducing = nullptr;  // has a reduction under way
  // Of libtorch modules (module_group.h): forwards that have begun and not ended, what the outermost leaves for its backward, and
  // whose backward runs.
  int64_t running = 0;
  std::shared_ptr<ModuleTape> recording;
  std::vector<std::shared_ptr<ModuleTape>> reached;
};

class ShardGroup {
 public:
  virtual ~ShardGroup() = default;
  ShardGroup(const ShardGroup&) = delete;
  ShardGroup& operator=(const ShardGroup&) = delete;

  const std::string& name() const { return name_; }
  std::vector<std::string> parameter_names() const;
  const RankMesh& mesh() const { return *mesh_; }
  // ValueError for a name that is not the group's.
  const Placement& placement(const std::string& parameter) const;
  // What each rank holds.
  const Layout& layout(const std::string& parameter) const;
  // This rank's parts, by name, sharing their memory. No communication.
  std::vector<std::pair<std::string, DistributedTensor>> sharded_parameters() const;

  // By hand. unshard is collective and idempotent; asynchronous, it returns at once and the next use (or unshard) waits. reshard
  // is local, and drops what reshard_after_forward = k kept.
  void unshard(bool async = false);
  void reshard();
  bool unsharded() const;

  // As FSDP2's, for the forwards and backwards to come.
  void set_reshard_after_forward(bool on);
  void set_reshard_after_backward(bool on) { reshard_after_backward_ = on; }
  // Without: no gather in the backward (embeddings do not read their table there). A read in it still gathers (weft's modules) or
  // is an error (libtorch's).
  void set_unshard_in_backward(bool on) { unshard_in_backward_ = on; }
  void set_requires_gradient_sync(bool on) { sync_ = on; }
  void set_requires_all_reduce(bool on) { all_reduce_ = on; }
  void set_gradient_divide_factor(double factor) { options_.gradient_divide_factor = factor; }
  // Of all groups under the outermost module: with false the last reduction may outlive the backward; gradients are complete
  // after the next backward with true.
  void set_is_last_backward(bool on) { context_->last_backward = on; }
  // Groups whose gathers begin when this one's has ended, in place of the next one in order. Each costs its memory.
  void set_forward_prefetch(std::vector<ShardGroup*> groups) { forward_prefetch_ = std::move(groups); }
  void set_backward_prefetch(std::vector<ShardGroup*> groups) { backward_prefetch_ = std::move(groups); }

 protected:
  ShardGroup(std::string name, std::shared_ptr<const RankMesh> mesh, ShardOptions options);
  void add(std::unique_ptr<ShardedTensor> tensor);
  // Joins the contexts of groups below to this one's, as the outermost: their reshard_after_forward is true where unset, this
  // one's false.
  void adopt(const std::vector<ShardGroup*>& below);

  void gather_for_forward();  // and the next one's begins
  // Nothing with set_unshard_in_backward(false). `next`: whose gather begins then, unless set_backward_prefetch said so.
  void gather_for_backward(ShardGroup* next);
  void reshard_after_forward();
  void finish_backward();  // all its gradients are there
  void start_reduce();
  void finish_reduce();
  void start_unshard(bool forward);
  void finish_unshard();
  bool trainable() const;
  // At the end of a backward: the last reduction, unless more backwards follow.
  static void finish_last_reduce(ShardContext& context);
  ShardGroup* neighbour(int step) const;  // in the order of the first forward

  std::string name_;
  std::shared_ptr<const RankMesh> mesh_;
  ShardOptions options_;
  std::shared_ptr<ShardContext> context_;
  bool reshard_after_backward_ = true, unshard_in_backward_ = true, sync_ = true, all_reduce_ = true;
  bool unreduced_ = false;  // this backward has, or will have, gradients to reduce
  std::vector<ShardGroup*> forward_prefetch_, backward_prefetch_;

 private:
  struct Shard {
    std::unique_ptr<ShardedTensor> tensor;
    Placement placement;
    ShardCut cut;                           // of placement.computed over the fsdp axis
    const Communicator* ranks = nullptr;    // along that axis
    std::vector<const Communicator*> terms;  // along the partial axes and replicate
    at::Tensor kept;                     // this rank's part among k neighbours, between forward and backward
    std::optional<TensorGather> gather;  // under way
    at::Tensor sent, received;           // while its gradient is being reduced
    at::Tensor unreplicated;             // reduced over fsdp, not yet over `terms`
  };
  const ShardCut& cut_of(Shard& s);
  void set_mode(std::variant<bool, int64_t> mode);

  std::vector<Shard> shards_;
  std::vector<ShardCut> kept_cuts_;  // with k: by shard
  int64_t keep_among_ = 0;           // after a forward: 0 gives all back, 1 nothing, else k
  bool gathering_ = false, kept_ = false;
  std::vector<Work> reductions_;
};

}  // namespace weft
