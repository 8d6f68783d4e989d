#include "weft/text/jinja_eval.h"

#include <fmt/format.h>

#include <algorithm>

#include "weft/text/jinja_arithmetic.h"
#include "weft/text/jinja_error.h"
#include "weft/text/jinja_methods.h"
#include "weft/text/jinja_scope.h"

namespace weft::jinja {

Interpreter::Depth::Depth(Interpreter& in) : in_(in) {
  if (in.depth_ >= kMaxEvalDepth) throw RawError(fmt::format("the template recurses deeper than {} levels", kMaxEvalDepth));
  ++in.depth_;
}

Interpreter::Interpreter(const std::string& name, Limits limits)
    : name_(name), limits_(limits), scope_(std::make_shared<Scope>()) {}

Interpreter::~Interpreter() {
  for (auto& scope : captured_) scope->variables.clear();
  for (auto& space : namespaces_) space->fields.clear();
}

void Interpreter::define(const std::string& name, Value value) { scope_->set(name, std::move(value)); }

std::string Interpreter::run(const Node& root, std::vector<std::pair<int64_t, int64_t>>& spans) {
  try {
    exec(root.bodies[0]);
  } catch (const RawError& error) {
    throw TemplateError(name_, error.what(), place_.line, place_.column);
  }
  spans = std::move(spans_);
  return std::move(root_output_);
}

void Interpreter::charge(int64_t work) {
  work_ += work;
  if (work_ > limits_.work) throw RawError(fmt::format("the template takes more than {} steps", limits_.work));
}
Value Interpreter::text(std::string text, bool markup) {
  charge(static_cast<int64_t>(text.size()) / 16);
  check_size(1, static_cast<int64_t>(text.size()));
  return Value::string(std::move(text), markup);
}
Value Interpreter::list(Values items) {
  charge(static_cast<int64_t>(items.size()));
  return Value::list(std::move(items));
}
Values Interpreter::items(const Value& value) {
  charge(value.is_string() ? value.weight() : is_iterable(value) && !value.is(Kind::kIterator) ? length(value) : 1);
  return iterate(value);
}
Value Interpreter::make_namespace() {
  charge(16);
  namespaces_.push_back(std::make_shared<Namespace>());
  return Value::name_space(namespaces_.back());
}

Value Interpreter::lookup(const std::string& name) const {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (const Value* value = scope->find(name)) return *value;
  }
  return Value::undefined(fmt::format("'{}' is undefined", name));
}

Values Interpreter::values(const std::vector<NodePtr>& nodes) {
  Values out;
  out.reserve(nodes.size());
  for (const NodePtr& node : nodes) out.push_back(eval(*node));
  return out;
}

Value Interpreter::eval(const Node& node) {
  Depth guard(*this);
  place_ = node.place;
  charge(1);
  switch (node.op) {
    case Op::kConst: return node.value;
    case Op::kName: return lookup(node.text);
    case Op::kList: return list(values(node.kids));
    case Op::kTuple: return Value::tuple(values(node.kids));
    case Op::kDict: return eval_dict(node);
    case Op::kAttribute: {
      Value object = eval(*node.kids[0]);
      place_ = node.place;
      return attribute(object, node.text);
    }
    case Op::kItem: return eval_item(node);
    case Op::kCall: return eval_call(node, nullptr);
    case Op::kFilter: return eval_filter(node, eval(*node.kids[0]));
    case Op::kTest: return eval_test(node);
    case Op::kCondition:
      if (truth(eval(*node.kids[0]))) return eval(*node.kids[1]);
      if (node.kids[2]) return eval(*node.kids[2]);
      return Value::undefined("the inline if-expression evaluated to false and has no else");
    case Op::kAnd: {
      Value left = eval(*node.kids[0]);
      return truth(left) ? eval(*node.kids[1]) : left;
    }
    case Op::kOr: {
      Value left = eval(*node.kids[0]);
      return truth(left) ? left : eval(*node.kids[1]);
    }
    case Op::kNot: return Value::boolean(!truth(eval(*node.kids[0])));
    case Op::kNegative:
    case Op::kPositive: {
      Value value = eval(*node.kids[0]);
      place_ = node.place;
      return node.op == Op::kNegative ? negative(value) : positive(value);
    }
    case Op::kAdd:
    case Op::kSubtract:
    case Op::kMultiply:
    case Op::kDivide:
    case Op::kFloorDivide:
    case Op::kModulo:
    case Op::kPower: {
      Value left = eval(*node.kids[0]);
      Value right = eval(*node.kids[1]);
      place_ = node.place;
      return arithmetic(*this, node.op, left, right);
    }
    case Op::kConcat: return eval_concat(node);
    case Op::kCompare: return eval_compare(node);
    default: WEFT_CHECK(false, "statement {} in an expression", static_cast<int>(node.op)); return {};
  }
}

Value Interpreter::eval_concat(const Node& node) {
  std::string out;
  for (const NodePtr& kid : node.kids) {
    Value value = eval(*kid);
    place_ = node.place;
    charge_for(value);
    out += to_text(value);
    check_size(1, static_cast<int64_t>(out.size()));
  }
  return text(std::move(out));
}

Value Interpreter::eval_compare(const Node& node) {
  Value left = eval(*node.kids[0]);
  for (size_t i = 0; i < node.operators.size(); ++i) {
    const std::string& op = node.operators[i];
    Value right = eval(*node.kids[i + 1]);
    place_ = node.place;
    charge((op == "in" || op == "not in" ? right.weight() : std::min(left.weight(), right.weight())) / 16);
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = equal(left, right) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = contains(right, left) == (op == "in");
    } else {
      bool unordered = false;
      int order = compare(left, right, unordered, op.c_str());
      holds = !unordered && (op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0);
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::eval_dict(const Node& node) {
  auto dict = std::make_shared<Dict>();
  for (size_t i = 0; i < node.kids.size(); i += 2) {
    Value key = eval(*node.kids[i]);
    place_ = node.place;
    check_hashable(key);
    Value value = eval(*node.kids[i + 1]);
    place_ = node.place;
    dict->set(std::move(key), std::move(value));
  }
  charge(static_cast<int64_t>(node.kids.size()));
  return Value::dict(std::move(dict));
}

Value Interpreter::eval_item(const Node& node) {
  Value object = eval(*node.kids[0]);
  const Node& index = *node.kids[1];
  if (index.op != Op::kSlice) {
    Value key = eval(index);
    place_ = node.place;
    return item(object, key);
  }
  Value parts[3];
  for (size_t i = 0; i < 3; ++i) {
    if (index.kids[i]) parts[i] = eval(*index.kids[i]);
  }
  place_ = node.place;
  charge(object.weight() / 16);
  return slice(*this, object, parts[0], parts[1], parts[2]);
}

Args Interpreter::arguments(const Call& call) {
  Args args;
  args.positional = values(call.positional);
  for (const auto& [name, node] : call.named) args.named.emplace_back(name, eval(*node));
  if (call.spread) {
    for (Value& value : items(eval(*call.spread))) args.positional.push_back(std::move(value));
  }
  if (call.spread_named) {
    Value more = eval(*call.spread_named);
    if (!more.is(Kind::kDict)) throw RawError(fmt::format("argument after ** must be a mapping, not {}", type_name(more)));
    for (const auto& [key, value] : more.as_dict().entries) {
      if (!key.is_string()) throw RawError("keywords must be strings");
      for (const auto& named : args.named) {
        if (named.first == key.text()) throw RawError(fmt::format("got multiple values for keyword argument '{}'", key.text()));
      }
      args.named.emplace_back(key.text(), value);
    }
    charge(length(more));
  }
  return args;
}

Value Interpreter::eval_call(const Node& node, const Value* caller) {
  Value callee = eval(*node.kids[0]);
  Args args = arguments(*node.call);
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  place_ = node.place;
  return call(callee, args);
}

Value Interpreter::call(const Value& callee, Args& args) {
  if (callee.is_undefined()) throw RawError(callee.text());
  if (callee.is(Kind::kCallable)) {
    Value keep = callee;  // the variable that holds it may be set while it runs
    return keep.as_callable().call(*this, args);
  }
  if (callee.is(Kind::kLoop)) {
    if (!callee.as_loop().recurse) throw RawError("the loop must have the 'recursive' marker to be called");
    if (args.positional.size() != 1 || !args.named.empty()) throw RawError("loop() takes one argument");
    auto recurse = callee.as_loop().recurse;
    return recurse(*this, args.positional[0]);
  }
  throw RawError(fmt::format("'{}' object is not callable", type_name(callee)));
}

Value Interpreter::eval_filter(const Node& node, const Value& input) {
  Args args = arguments(*node.call);
  place_ = node.place;
  charge(1);
  return node.call->filter(*this, input, args);
}

Value Interpreter::eval_test(const Node& node) {
  Value input = eval(*node.kids[0]);
  Args args = arguments(*node.call);
  place_ = node.place;
  return Value::boolean(node.call->test(*this, input, args));
}

Value Interpreter::attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) throw RawError(object.text());
  Value found;
  if (find_attribute(*this, object, name, found)) return found;
  if (object.is(Kind::kDict)) {
    if (const Value* value = object.as_dict().find(name)) return *value;
  }
  return Value::undefined(fmt::format("'{} object' has no attribute {}", type_name(object), quoted_name(name)));
}

Value Interpreter::item(const Value& object, const Value& key) {
  Value found;
  if (object.is_undefined()) throw RawError(object.text());
  if (object.is(Kind::kDict)) {
    check_hashable(key);
    if (const Value* value = object.as_dict().find(key)) return *value;
  } else if (key.is(Kind::kInt) || key.is(Kind::kBool)) {
    charge(object.is_string() ? object.weight() / 16 : 1);
    if (element(object, key.as_int(), found)) return found;
  }
  if (key.is_string()) {
    if (find_attribute(*this, object, key.text(), found)) return found;
    return Value::undefined(fmt::format("'{} object' has no attribute {}", type_name(object), quoted_name(key.text())));
  }
  return Value::undefined(fmt::format("'{} object' has no such element", type_name(object)));
}

}  // namespace weft::jinja
