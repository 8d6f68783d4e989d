#include <fmt/format.h>

#include <algorithm>

#include "weft/text/jinja_error.h"
#include "weft/text/jinja_eval.h"
#include "weft/text/jinja_scope.h"

namespace weft::jinja {

namespace {

// Puts a variable back at the end of a block, whatever ends it.
template <class T>
class Restore {
 public:
  Restore(T& variable, T inside) : variable_(variable), outside_(std::move(variable)) { variable_ = std::move(inside); }
  ~Restore() { variable_ = std::move(outside_); }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  T& variable_;
  T outside_;
};

std::shared_ptr<Scope> inner_scope(const std::shared_ptr<Scope>& parent) {
  auto scope = std::make_shared<Scope>();
  scope->parent = parent;
  return scope;
}

}  // namespace

void Interpreter::emit(const std::string& text) {
  emitted_ += static_cast<int64_t>(text.size());
  if (emitted_ > limits_.output_bytes)
    throw RawError(fmt::format("the template writes more than {} bytes", limits_.output_bytes));
  *output_ += text;
}

std::string Interpreter::capture(const Body& body) {
  std::string text;
  Restore<std::string*> output(output_, &text);
  Restore<std::shared_ptr<Scope>> scope(scope_, inner_scope(scope_));
  exec(body);
  return text;
}

Interpreter::Flow Interpreter::exec(const Body& body) {
  for (const NodePtr& node : body) {
    if (Flow flow = exec(*node); flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::exec(const Node& node) {
  Depth guard(*this);
  place_ = node.place;
  charge(1);
  switch (node.op) {
    case Op::kData: emit(node.text); break;
    case Op::kPrint: {
      Value value = eval(*node.kids[0]);
      place_ = node.place;
      charge_for(value);
      emit(to_text(value));
      break;
    }
    case Op::kIf: return exec_if(node);
    case Op::kFor: return exec_for(node);
    case Op::kSet: {
      Value value = eval(*node.kids[1]);
      place_ = node.place;
      assign(*node.kids[0], value);
      break;
    }
    case Op::kSetBlock: exec_set_block(node); break;
    case Op::kMacro: scope_->set(node.text, make_function(node)); break;
    case Op::kCallBlock: {
      Value caller = make_function(node);
      emit(to_text(eval_call(*node.kids[0], &caller)));
      break;
    }
    case Op::kFilterBlock: emit(to_text(filter_block(*node.kids[0], text(capture(node.bodies[0]))))); break;
    case Op::kWith: return exec_with(node);
    case Op::kGeneration: exec_generation(node); break;
    case Op::kBreak: return Flow::kBreak;
    case Op::kContinue: return Flow::kContinue;
    default: WEFT_CHECK(false, "expression {} as a statement", static_cast<int>(node.op));
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::exec_if(const Node& node) {
  for (size_t i = 0; i < node.kids.size(); ++i) {
    if (truth(eval(*node.kids[i]))) return exec(node.bodies[i]);
  }
  return node.bodies.size() > node.kids.size() ? exec(node.bodies.back()) : Flow::kNext;
}

Interpreter::Flow Interpreter::exec_for(const Node& node) { return run_loop(node, eval(*node.kids[1]), 0); }

// A break or continue in the else part belongs to a loop outside.
Interpreter::Flow Interpreter::run_loop(const Node& node, const Value& iterable, int64_t depth) {
  place_ = node.place;
  auto loop = std::make_shared<Loop>();
  loop->items = items(iterable);
  loop->depth = depth;
  if (node.kids[2]) {
    Values kept;
    for (Value& value : loop->items) {
      Restore<std::shared_ptr<Scope>> scope(scope_, inner_scope(scope_));
      assign(*node.kids[0], value);
      if (truth(eval(*node.kids[2]))) kept.push_back(std::move(value));
    }
    loop->items = std::move(kept);
  }
  for (const Value& value : loop->items) loop->value_depth = std::max(loop->value_depth, value.depth() + 1);
  check_size(loop->value_depth, 0);
  if (loop->items.empty()) {
    if (node.bodies.size() < 2) return Flow::kNext;
    Restore<std::shared_ptr<Scope>> scope(scope_, inner_scope(scope_));
    return exec(node.bodies[1]);
  }
  if (node.flag) {
    loop->recurse = [&node, depth, outer = scope_](Interpreter& in, const Value& inside) {
      if (in.calls_ >= kMaxCalls) throw RawError(fmt::format("loops recurse deeper than {} levels", kMaxCalls));
      Restore<int32_t> calls(in.calls_, in.calls_ + 1);
      std::string text;
      Restore<std::string*> output(in.output_, &text);
      Restore<std::shared_ptr<Scope>> scope(in.scope_, outer);
      in.run_loop(node, inside, depth + 1);
      return in.text(std::move(text));
    };
  }
  for (; loop->index < static_cast<int64_t>(loop->items.size()); ++loop->index) {
    Restore<std::shared_ptr<Scope>> scope(scope_, inner_scope(scope_));
    scope_->set("loop", Value::loop(loop));
    place_ = node.place;
    assign(*node.kids[0], loop->items[static_cast<size_t>(loop->index)]);
    if (exec(node.bodies[0]) == Flow::kBreak) break;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::exec_with(const Node& node) {
  auto inner = inner_scope(scope_);
  for (size_t i = 0; i < node.kids.size(); i += 2) {
    Value value = eval(*node.kids[i + 1]);
    Restore<std::shared_ptr<Scope>> scope(scope_, inner);
    assign(*node.kids[i], value);
  }
  Restore<std::shared_ptr<Scope>> scope(scope_, inner);
  return exec(node.bodies[0]);
}

Value Interpreter::filter_block(const Node& filter, Value text) {
  Value input = filter.kids[0] ? filter_block(*filter.kids[0], std::move(text)) : std::move(text);
  return eval_filter(filter, input);
}

void Interpreter::exec_set_block(const Node& node) {
  Value value = text(capture(node.bodies[0]));
  if (node.kids[1]) value = filter_block(*node.kids[1], std::move(value));
  place_ = node.place;
  assign(*node.kids[0], value);
}

// The place of a span is known in the text itself only: what is captured may be changed, moved or dropped later.
void Interpreter::exec_generation(const Node& node) {
  if (output_ != &root_output_) {
    throw RawError(
        "a 'generation' block inside of a macro, a call, a filter, a set block or another generation is not supported");
  }
  int64_t start = static_cast<int64_t>(root_output_.size());
  std::string body = capture(node.bodies[0]);
  root_output_ += body;
  spans_.emplace_back(start, static_cast<int64_t>(root_output_.size()));
}

void Interpreter::assign(const Node& target, const Value& value) {
  if (target.op == Op::kName) {
    scope_->set(target.text, value);
  } else if (target.op == Op::kNamespaceField) {
    Value space = lookup(target.text);
    if (!space.is(Kind::kNamespace)) {
      throw RawError(fmt::format("cannot assign to a field of '{}': it is not a namespace", target.text));
    }
    charge(static_cast<int64_t>(space.as_namespace().fields.size()) / 4);
    space.as_namespace().set(target.operators[0], value);
  } else {
    Values parts = items(value);
    if (parts.size() != target.kids.size()) {
      throw RawError(fmt::format("expected {} values to unpack, got {}", target.kids.size(), parts.size()));
    }
    for (size_t i = 0; i < parts.size(); ++i) assign(*target.kids[i], parts[i]);
  }
}

Value Interpreter::make_function(const Node& node) {
  charge(32);
  if (!scope_->captured) {
    scope_->captured = true;
    captured_.push_back(scope_);
  }
  Callable out;
  out.name = node.text;
  out.call = [&node, scope = scope_](Interpreter& in, Args& args) { return in.run_function(node, scope, args); };
  Values names;
  for (const std::string& name : node.macro->parameters) names.push_back(Value::string(name));
  out.attributes = {{"name", Value::string(node.text)},
                    {"arguments", Value::tuple(std::move(names))},
                    {"catch_kwargs", Value::boolean(node.macro->uses_kwargs)},
                    {"catch_varargs", Value::boolean(node.macro->uses_varargs)},
                    {"caller", Value::boolean(node.macro->uses_caller)}};
  return Value::callable(std::make_shared<const Callable>(std::move(out)));
}

void Interpreter::bind(const Node& node, Args& args) {
  const MacroParts& macro = *node.macro;
  size_t count = macro.parameters.size();
  Values rest;
  if (args.positional.size() > count) {
    if (!macro.uses_varargs) throw RawError(fmt::format("macro '{}' takes not more than {} argument(s)", node.text, count));
    rest.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(count), args.positional.end());
  }
  auto take = [&](const std::string& name, Value& out) {
    for (auto at = args.named.begin(); at != args.named.end(); ++at) {
      if (at->first != name) continue;
      out = std::move(at->second);
      args.named.erase(at);
      return true;
    }
    return false;
  };
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = macro.parameters[i];
    Value value;
    if (i < args.positional.size()) {
      value = std::move(args.positional[i]);
      Value twice;
      if (take(name, twice)) throw RawError(fmt::format("macro '{}' got two values for '{}'", node.text, name));
    } else if (!take(name, value)) {
      size_t first_default = count - macro.defaults.size();
      value = i < first_default ? Value::undefined(fmt::format("parameter '{}' was not provided", name))
                                : eval(*macro.defaults[i - first_default]);
    }
    scope_->set(name, std::move(value));
  }
  if (macro.uses_caller) {
    Value caller;
    scope_->set("caller", take("caller", caller) ? caller : Value::undefined("no caller defined"));
  }
  if (!args.named.empty() && !macro.uses_kwargs) {
    throw RawError(fmt::format("macro '{}' takes no keyword argument '{}'", node.text, args.named[0].first));
  }
  if (macro.uses_kwargs) {
    auto dict = std::make_shared<Dict>();
    for (auto& [name, value] : args.named) dict->set(Value::string(name), std::move(value));
    scope_->set("kwargs", Value::dict(std::move(dict)));
  }
  if (macro.uses_varargs) scope_->set("varargs", Value::tuple(std::move(rest)));
}

Value Interpreter::run_function(const Node& node, const std::shared_ptr<Scope>& scope, Args& args) {
  if (calls_ >= kMaxCalls) throw RawError(fmt::format("macros call each other deeper than {} levels", kMaxCalls));
  Restore<int32_t> calls(calls_, calls_ + 1);
  Restore<std::shared_ptr<Scope>> inside(scope_, inner_scope(scope));
  bind(node, args);
  return text(capture(node.bodies[0]));
}

}  // namespace weft::jinja
