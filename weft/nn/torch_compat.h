#pragma once
// Differences between libtorch 1.13 (Debian 12) and the newest ones, in one place. No version is asked for: what is there
// decides.

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace weft::nn {

// How the graph holds its nodes: std::shared_ptr, in newer versions c10::intrusive_ptr.
using NodePointer = decltype(torch::autograd::Edge::function);

template <class T, class... Args>
NodePointer make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>)
    return std::make_shared<T>(std::forward<Args>(args)...);
  else
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
}

}  // namespace weft::nn
