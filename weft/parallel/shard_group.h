#pragma once
// The parameters of one fully_shard call: when they are gathered, given back, and their gradients reduced.
//
// Memory: at most two groups but the outermost are gathered at a time (the one at work and the next, prefetched), and at most one
// group's full gradients wait while another's are in reduction.

#include <memory>
#include <string>
#include <vector>

#include "weft/mesh/layout.h"
#include "weft/nn/module.h"
#include "weft/parallel/fully_shard.h"

namespace weft {

// What the groups under one outermost module share.
struct ShardContext {
  std::vector<ShardGroup*> groups;   // in the order of their calls
  std::vector<ShardGroup*> forward;  // the order in which the first forward gathered them
  bool end_registered = false;       // of the backward that runs
  ShardGroup* reducing = nullptr;    // has a reduction under way
};

class ShardGroup final : public nn::ShardOwner, public nn::Module::Extension {
 public:
  ShardGroup(nn::Module& module, std::vector<nn::Parameter*> parameters, std::shared_ptr<const RankMesh> mesh, FullyShardOptions options);

  const std::string& name() const { return name_; }
  const std::vector<nn::Parameter*>& parameters() const { return parameters_; }
  const Layout& layout(const nn::Parameter& p) const;
  const RankMesh& mesh() const { return *mesh_; }

  // By hand; collective. unshard is idempotent, reshard local.
  void unshard();
  void reshard();
  bool unsharded() const;
  void set_reshard_after_forward(bool on) { reshard_after_forward_ = on; }
  void set_requires_gradient_sync(bool on) { sync_ = on; }
  void set_requires_all_reduce(bool on) { all_reduce_ = on; }

  // ShardOwner.
  void gather(nn::Parameter& p) override;
  void grad_expected(nn::Parameter& p) override;
  void grad_added(nn::Parameter& p) override;

 private:
  friend ShardGroup& fully_shard(nn::Module&, std::shared_ptr<const RankMesh>, FullyShardOptions);

  struct Shard {
    nn::Parameter* parameter = nullptr;
    Layout layout;
    int64_t dim = 0;
    std::vector<int64_t> counts;                // elements by coordinate on the fsdp axis
    std::vector<std::vector<int64_t>> shapes;   // local shapes by coordinate
    bool contiguous = false;                    // the shards one after the other are the tensor
    at::Tensor full, staging;                   // while it is being gathered
    at::Tensor sent, received;                  // while its gradient is being reduced
    at::Tensor unreplicated;                    // reduced over fsdp, not yet over replicate
  };

  void before_forward();
  void after_forward();
  void start_unshard();
  void finish_unshard();
  void prefetch(int step);  // the group after (+1) or before (-1) this one in the order of the forward
  void backward_needs();
  void after_backward();
  void start_reduce();
  void finish_reduce();
  void register_end();
  static void end_of_backward(ShardContext& context);

  std::string name_;
  std::vector<nn::Parameter*> parameters_;
  std::shared_ptr<const RankMesh> mesh_;
  FullyShardOptions options_;
  bool reshard_after_forward_ = true, sync_ = true, all_reduce_ = true;
  std::shared_ptr<ShardContext> context_;
  std::vector<Shard> shards_;
  std::vector<Work> gathers_, reductions_;
  int64_t pending_ = 0;        // gradient contributions that recorded ops still owe
  bool unreduced_ = false;     // this backward has, or will have, gradients to reduce
};

}  // namespace weft
