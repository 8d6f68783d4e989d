#include "weft/nn/module.h"

#include <unordered_set>

namespace weft::nn {
namespace {

void collect(const Module& m, std::unordered_set<const Parameter*>& seen, std::vector<Parameter*>& out) {
  for (Parameter* p : m.own_parameters())
    if (seen.insert(p).second) out.push_back(p);
  for (const Module* c : m.children()) collect(*c, seen, out);
}

void collect_modules(Module* m, std::vector<Module*>& out) {
  out.push_back(m);
  for (Module* c : m->children()) collect_modules(c, out);
}

}  // namespace

std::vector<Parameter*> Module::parameters() const {
  std::unordered_set<const Parameter*> seen;
  std::vector<Parameter*> out;
  collect(*this, seen, out);
  return out;
}

std::vector<Module*> Module::modules() {
  std::vector<Module*> out;
  collect_modules(this, out);
  return out;
}

Parameter* Module::add_parameter(const std::string& leaf, std::vector<int64_t> shape, Precision precision) {
  owned_parameters_.push_back(std::make_unique<Parameter>(child_name(leaf), std::move(shape), precision));
  own_.push_back(owned_parameters_.back().get());
  return own_.back();
}

}  // namespace weft::nn
