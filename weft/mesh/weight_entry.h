#pragma once
// Where a tensor on disk lives in the model: plain data, made by weft/model, read by weft/checkpoint.

#include <string>
#include <vector>

#include "weft/mesh/box.h"

namespace weft {

struct WeightEntry {
  std::string name;            // on disk
  std::vector<int64_t> shape;  // on disk
  std::string parameter;       // the parameter's name in the module tree
  Box box;                     // of the parameter; its elements in row-major order are the tensor on disk
};

}  // namespace weft
