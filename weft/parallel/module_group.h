#pragma once
// Behind sharded_module.h: the group of a libtorch module, and what its forwards leave for their backward.

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/nn/torch_compat.h"
#include "weft/parallel/sealed_tensor.h"
#include "weft/parallel/shard_group.h"

namespace weft {

namespace detail {
struct ModuleGroup;
}

// What the sharded modules below one outermost call did in a forward, so that its backward does the reverse in the reverse order
// on every rank, also where the graph reaches some of them on some ranks only.
//
// Forward appends "opened" and "closed" of each call, nested as the calls are. Backward walks from the end: at "closed" the
// parameters are gathered, at "opened" their gradients are reduced. A node of the graph says that it has come to its event; what
// lies behind it and was not reached is made up for first. (libtorch runs the nodes of a graph youngest first, so nothing behind
// will still come.)
class ModuleTape : public std::enable_shared_from_this<ModuleTape> {
 public:
  size_t append(std::shared_ptr<detail::ModuleGroup> group, bool closed);
  // Backward has come to event `at`, whose work the caller does.
  void reach(size_t at);
  // The rest, at the end of a backward; another one may then begin at the end again.
  void finish();
  // Whose gather comes next, null where none does.
  detail::ModuleGroup* next_gather() const;

 private:
  struct Event {
    std::shared_ptr<detail::ModuleGroup> group;
    bool closed = false;  // else opened
  };
  void run_skipped();
  std::vector<Event> events_;
  std::optional<size_t> position_;  // events from here on are done; none: no backward runs
};

// A parameter of a libtorch module: `part` is this rank's, a leaf under the parameter's name; the members of modules hold the
// sealed tensor.
class ModuleShard final : public ShardedTensor {
 public:
  ModuleShard(std::string name, at::Tensor part, const at::Tensor& member, at::ScalarType dtype)
      : name_(std::move(name)), shape_(member.sizes().vec()), part_(std::move(part)), sealed_(member, dtype) {}

  const std::string& name() const override { return name_; }
  std::vector<int64_t> shape() const override { return shape_; }
  bool trainable() const override { return part_.requires_grad(); }
  at::Tensor master() const override { return part_.detach(); }
  at::Tensor local() override;
  at::Tensor buffer() override { return sealed_.allocate(); }
  bool gathered() const override { return gathered_ && version_ == version() && part_.is_alias_of(source_); }
  at::Tensor full() override { return sealed_.full(); }
  void set_gathered(at::Tensor full) override;
  at::Tensor take_full_grad() override { return std::exchange(grad_, at::Tensor()); }
  void add_grad(const at::Tensor& part) override;

  void rename(const std::string& name, const std::string& group);
  // `keep`: the backward returns before the gradient is reduced.
  void add_full_grad(const at::Tensor& grad, bool keep);
  int64_t version() const { return static_cast<int64_t>(part_._version()); }
  SealedTensor& sealed() { return sealed_; }

 private:
  std::string name_;
  std::vector<int64_t> shape_;
  at::Tensor part_;
  SealedTensor sealed_;
  bool gathered_ = false;
  int64_t version_ = 0;  // of the part when it was gathered
  at::Tensor source_;    // the part then: set_data, by which libtorch loads, counts no version
  at::Tensor grad_;
};

namespace detail {

struct ModuleGroup final : public ShardGroup, public std::enable_shared_from_this<ModuleGroup> {
  ModuleGroup(std::string name, std::shared_ptr<const RankMesh> mesh, const ShardOptions& options)
      : ShardGroup(std::move(name), std::move(mesh), options) {}
  using ShardGroup::adopt;
  void add_shard(std::unique_ptr<ModuleShard> shard);
  // `path`: of the module below an outer one; parameters are named below it.
  void rename(const std::string& path);

  // Forward. begin is false inside of a forward of the same module: the outer one does everything.
  bool begin();
  void end(const std::vector<at::Tensor*>& outputs);
  void end_nested() { --depth_; }
  void abandon();

  // Backward. Versions are those of the parts when the forward read them.
  struct Call {
    nn::NodePointer parameters;  // null: none is trainable
    std::vector<int64_t> versions;
  };
  void gather_in_backward(ModuleGroup* next) { gather_for_backward(next); }
  void open_in_backward(const Call& call);
  void add_grads(const std::vector<at::Tensor>& grads);
  void close_in_backward();
  static void end_backward(ShardContext& context);  // of all groups
  std::shared_ptr<ShardContext> shared_context() { return context_; }

  std::optional<at::ScalarType> param_dtype, output_dtype;  // param_dtype: of inputs
  std::vector<std::string> own_names;                       // below the module itself

 private:
  void open(const nn::NodePointer& parameters);
  void seal();
  std::vector<int64_t> versions() const;

  std::vector<ModuleShard*> tensors_;
  int64_t depth_ = 0;
  // Of the forward that runs.
  std::shared_ptr<ModuleTape> tape_;
  nn::NodePointer parameters_;
};

}  // namespace detail

// The node that a call's parameters come from: takes their gradients, adds input metadata in their order.
nn::NodePointer make_parameters_node(std::shared_ptr<ModuleTape> tape, size_t opened, std::shared_ptr<detail::ModuleGroup> group);
// Replaces outputs that carry gradients by aliases behind a node that gathers for the call's backward.
void add_gather_node(std::shared_ptr<ModuleTape> tape, size_t closed, std::shared_ptr<detail::ModuleGroup> group,
                     detail::ModuleGroup::Call call, const std::vector<at::Tensor*>& outputs);

}  // namespace weft
