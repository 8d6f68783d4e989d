#pragma once
// One rendering of a template: scopes, output, limits. Not shared between threads; the tree it walks is. Failures are
// TemplateErrors with the place of the expression that failed.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/text/jinja_ast.h"

namespace weft::jinja {

struct Limits {
  int64_t output_bytes;  // of the text and of everything captured on the way
  int64_t work;          // steps of evaluation; text and items that are copied or compared count too
};

struct Scope;

class Interpreter {
 public:
  Interpreter(const std::string& name, Limits limits);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  void define(const std::string& name, Value value);
  // Renders once; `spans` gets byte ranges of the {% generation %} blocks.
  std::string run(const Node& root, std::vector<std::pair<int64_t, int64_t>>& spans);

  // For filters and methods.
  void charge(int64_t work);
  void charge_for(const Value& value) { charge(value.weight() / 16); }
  Value text(std::string text, bool markup = false);  // charged
  Value list(Values items);                           // charged
  Values items(const Value& value);                   // iterate, charged
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);
  Value call(const Value& callee, Args& args);
  Value make_namespace();

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Depth;

  Value eval(const Node& node);
  Value eval_compare(const Node& node);
  Value eval_concat(const Node& node);
  Value eval_dict(const Node& node);
  Value eval_item(const Node& node);
  Value eval_call(const Node& node, const Value* caller);
  Value eval_filter(const Node& node, const Value& input);
  Value eval_test(const Node& node);
  Value lookup(const std::string& name) const;
  Args arguments(const Call& call);
  Values values(const std::vector<NodePtr>& nodes);

  Flow exec(const Body& body);
  Flow exec(const Node& node);
  Flow exec_if(const Node& node);
  Flow exec_for(const Node& node);
  Flow exec_with(const Node& node);
  void exec_set_block(const Node& node);
  void exec_generation(const Node& node);
  Flow run_loop(const Node& node, const Value& iterable, int64_t depth);
  Value filter_block(const Node& filter, Value text);
  void assign(const Node& target, const Value& value);
  void emit(const std::string& text);
  std::string capture(const Body& body);
  Value make_function(const Node& node);
  Value run_function(const Node& node, const std::shared_ptr<Scope>& scope, Args& args);
  void bind(const Node& node, Args& args);

  const std::string& name_;
  Limits limits_;
  int64_t work_ = 0;
  int64_t emitted_ = 0;
  int32_t depth_ = 0;
  int32_t calls_ = 0;
  Place place_;
  std::shared_ptr<Scope> scope_;
  std::string root_output_;
  std::string* output_ = &root_output_;
  std::vector<std::pair<int64_t, int64_t>> spans_;
  // What can be part of a cycle; emptied at the end.
  std::vector<std::shared_ptr<Scope>> captured_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

}  // namespace weft::jinja
