#pragma once
// What a rank has of a parameter, and what of it a tensor on disk is.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/mesh/layout.h"
#include "weft/mesh/weight_entry.h"

namespace weft {

// A tensor (fp32, on any device) and which boxes of the parameter it consists of.
struct ParameterPart {
  at::Tensor local;
  std::vector<LocalBox> boxes;
};
ParameterPart whole_parameter(const at::Tensor& master);
// The tensor on disk, whole.
ParameterPart whole_tensor(const WeightEntry& e, const at::Tensor& full);
// By the parameter's name in the module tree.
using PartByName = std::function<ParameterPart(const std::string&)>;

// The part of a parameter (or of its gradient) that `box` names: a view.
at::Tensor narrow_to(const at::Tensor& t, const Box& box);

// The dtype of ATen; F32, BF16 and F16 only.
at::ScalarType floating_type(DType dtype);

// Where a rank's part and a tensor on disk meet: a view of the part and its box of the tensor on disk (shaped as e.box), in
// pieces of at most 4 MiB of fp32, so that what is made of a piece on the way stays small.
void for_each_piece(const ParameterPart& part, const WeightEntry& e,
                    const std::function<void(const at::Tensor&, const Box&)>& fn);

// Bytes of a tensor on disk of `shape`: the box of them as fp32, read and nothing else.
at::Tensor read_box(std::span<const std::byte> bytes, DType dtype, const std::vector<int64_t>& shape, const Box& box);
// Fills the part with what it has of the tensor on disk; returns how many bytes of that were read.
int64_t read_part(std::span<const std::byte> bytes, DType dtype, const WeightEntry& e, const ParameterPart& part);
// The part's share of the hash (kernels/element_hash.h) of the tensor on disk.
uint64_t hash_part(std::span<const std::byte> bytes, DType dtype, const WeightEntry& e, const std::vector<LocalBox>& boxes);

}  // namespace weft
