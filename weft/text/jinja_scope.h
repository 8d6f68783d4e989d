#pragma once
// Variables of a block, and the guards of the evaluator (jinja_eval.cc, jinja_statements.cc).

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/text/jinja_eval.h"

namespace weft::jinja {

constexpr int32_t kMaxEvalDepth = 1000;
constexpr int32_t kMaxCalls = 100;  // macros that call macros

struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;
  bool captured = false;  // by a macro

  const Value* find(const std::string& name) const {
    for (const auto& [key, value] : variables) {
      if (key == name) return &value;
    }
    return nullptr;
  }
  void set(const std::string& name, Value value) {
    for (auto& [key, old] : variables) {
      if (key == name) {
        std::swap(old, value);  // what was there dies after the scope is whole again
        return;
      }
    }
    variables.emplace_back(name, std::move(value));
  }
};

class Interpreter::Depth {
 public:
  explicit Depth(Interpreter& in);
  ~Depth() { --in_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  Interpreter& in_;
};

}  // namespace weft::jinja
