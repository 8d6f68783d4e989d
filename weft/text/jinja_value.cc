#include "weft/text/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "weft/text/jinja_unicode.h"

namespace weft::jinja {

void check_size(int32_t depth, int64_t weight) {
  if (depth > kMaxValueDepth) throw RawError(fmt::format("values nest deeper than {} levels", kMaxValueDepth));
  if (weight > kMaxValueWeight) throw RawError(fmt::format("a value holds more than {} items and bytes", kMaxValueWeight));
}

namespace {

struct ItemsObject {
  Values items;
  int32_t depth = 1;
  int64_t weight = 1;
  std::string name;       // view
  size_t taken = 0;       // iterator
  int64_t range[3] = {};  // range
};

std::shared_ptr<ItemsObject> make_items(Values items) {
  auto object = std::make_shared<ItemsObject>();
  for (const Value& v : items) {
    object->depth = std::max(object->depth, v.depth() + 1);
    object->weight += v.weight();
  }
  check_size(object->depth, object->weight);
  object->items = std::move(items);
  return object;
}

}  // namespace

Value Value::undefined(std::string why) {
  Value v;
  v.kind_ = Kind::kUndefined;
  v.object_ = std::make_shared<const std::string>(std::move(why));
  return v;
}
Value Value::boolean(bool b) {
  Value v;
  v.kind_ = Kind::kBool;
  v.bits_.b = b;
  return v;
}
Value Value::integer(int64_t i) {
  Value v;
  v.kind_ = Kind::kInt;
  v.bits_.i = i;
  return v;
}
Value Value::wide_integer(__int128 i) {
  if (i >= INT64_MIN && i <= INT64_MAX) return integer(static_cast<int64_t>(i));
  Value v;
  v.kind_ = Kind::kBigInt;
  v.object_ = std::make_shared<const std::string>(fmt::format("{}", i));
  return v;
}
Value Value::digits(std::string decimal) {
  bool negative = !decimal.empty() && decimal[0] == '-';
  size_t first = std::min(decimal.find_first_not_of('0', negative ? 1 : 0), decimal.size());
  decimal = (negative ? "-" : "") + decimal.substr(first);
  if (decimal.size() <= 19 + (negative ? 1U : 0U)) {
    __int128 i = 0;
    for (char c : decimal) {
      if (c != '-') i = i * 10 + (c - '0');
    }
    return wide_integer(negative ? -i : i);
  }
  Value v;
  v.kind_ = Kind::kBigInt;
  v.object_ = std::make_shared<const std::string>(std::move(decimal));
  return v;
}
Value Value::real(double d) {
  Value v;
  v.kind_ = Kind::kFloat;
  v.bits_.d = d;
  return v;
}
Value Value::string(std::string text, bool markup) {
  Value v;
  v.kind_ = Kind::kString;
  v.flag_ = markup;
  v.object_ = std::make_shared<const std::string>(std::move(text));
  return v;
}
Value Value::bytes(std::string text) {
  Value v = string(std::move(text));
  v.kind_ = Kind::kBytes;
  return v;
}
Value Value::list(Values items) {
  Value v;
  v.kind_ = Kind::kList;
  v.object_ = make_items(std::move(items));
  return v;
}
Value Value::tuple(Values items, bool group) {
  Value v = list(std::move(items));
  v.kind_ = Kind::kTuple;
  v.flag_ = group;
  return v;
}
Value Value::iterator(Values items) {
  Value v = list(std::move(items));
  v.kind_ = Kind::kIterator;
  return v;
}
Value Value::view(const char* name, Values items) {
  auto object = make_items(std::move(items));
  object->name = name;
  Value v;
  v.kind_ = Kind::kView;
  v.object_ = std::move(object);
  return v;
}
Value Value::range(int64_t start, int64_t stop, int64_t step, Values items) {
  auto object = make_items(std::move(items));
  object->range[0] = start, object->range[1] = stop, object->range[2] = step;
  Value v;
  v.kind_ = Kind::kRange;
  v.object_ = std::move(object);
  return v;
}
Value Value::dict(std::shared_ptr<const Dict> dict) {
  Value v;
  v.kind_ = Kind::kDict;
  v.object_ = std::move(dict);
  return v;
}
Value Value::name_space(std::shared_ptr<Namespace> space) {
  Value v;
  v.kind_ = Kind::kNamespace;
  v.object_ = std::move(space);
  return v;
}
Value Value::loop(std::shared_ptr<Loop> loop) {
  Value v;
  v.kind_ = Kind::kLoop;
  v.object_ = std::move(loop);
  return v;
}
Value Value::callable(std::shared_ptr<const Callable> callable) {
  Value v;
  v.kind_ = Kind::kCallable;
  v.object_ = std::move(callable);
  return v;
}
Value Value::function(std::string name, std::function<Value(Interpreter&, Args&)> call) {
  return callable(std::make_shared<const Callable>(Callable{std::move(name), std::move(call), {}, 0}));
}
Value Value::method(std::string name, const Value& self, std::function<Value(Interpreter&, Args&)> call) {
  check_size(self.depth() + 1, 0);
  return callable(std::make_shared<const Callable>(Callable{std::move(name), std::move(call), {}, self.depth() + 1}));
}

const std::string& Value::text() const {
  if (kind_ == Kind::kView) return static_cast<const ItemsObject*>(object_.get())->name;
  return *static_cast<const std::string*>(object_.get());
}
const Values& Value::items() const { return static_cast<const ItemsObject*>(object_.get())->items; }
const Dict& Value::as_dict() const { return *static_cast<const Dict*>(object_.get()); }
// The three mutable kinds were made from pointers to non-const objects.
Namespace& Value::as_namespace() const { return *static_cast<Namespace*>(const_cast<void*>(object_.get())); }
Loop& Value::as_loop() const { return *static_cast<Loop*>(const_cast<void*>(object_.get())); }
const Callable& Value::as_callable() const { return *static_cast<const Callable*>(object_.get()); }

Values Value::take_rest() const {
  auto& object = *static_cast<ItemsObject*>(const_cast<void*>(object_.get()));
  Values rest(object.items.begin() + static_cast<std::ptrdiff_t>(object.taken), object.items.end());
  object.taken = object.items.size();
  return rest;
}
bool Value::take_one(Value& out) const {
  auto& object = *static_cast<ItemsObject*>(const_cast<void*>(object_.get()));
  if (object.taken == object.items.size()) return false;
  out = object.items[object.taken++];
  return true;
}
int32_t Value::depth() const {
  switch (kind_) {
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
    case Kind::kIterator: return static_cast<const ItemsObject*>(object_.get())->depth;
    case Kind::kDict: return as_dict().depth;
    case Kind::kLoop: return as_loop().value_depth;
    case Kind::kCallable: return as_callable().depth;
    default: return 0;
  }
}

int64_t Value::weight() const {
  switch (kind_) {
    case Kind::kString:
    case Kind::kBytes:
    case Kind::kBigInt: return 1 + static_cast<int64_t>(text().size());
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
    case Kind::kIterator: return static_cast<const ItemsObject*>(object_.get())->weight;
    case Kind::kDict: return as_dict().weight;
    default: return 1;
  }
}

const Value* Dict::find(std::string_view key) const {
  auto at = by_text_.find(std::string(key));
  return at == by_text_.end() ? nullptr : &entries[at->second].second;
}
const Value* Dict::find(const Value& key) const {
  if (key.is_string()) return find(key.text());
  for (const auto& [k, v] : entries) {
    if (!k.is_string() && equal(k, key)) return &v;
  }
  return nullptr;
}
void Dict::set(Value key, Value value) {
  depth = std::max({depth, key.depth() + 1, value.depth() + 1});
  weight += key.weight() + value.weight();
  check_size(depth, weight);
  if (const Value* old = find(key)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  if (key.is_string()) by_text_.emplace(key.text(), entries.size());
  entries.emplace_back(std::move(key), std::move(value));
}

const Value* Namespace::find(std::string_view name) const {
  for (const auto& [k, v] : fields) {
    if (k == name) return &v;
  }
  return nullptr;
}
void Namespace::set(const std::string& name, Value value) {
  for (auto& [k, v] : fields) {
    if (k == name) {
      v = std::move(value);
      return;
    }
  }
  fields.emplace_back(name, std::move(value));
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt:
    case Kind::kBigInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return value.flag() ? "Markup" : "str";
    case Kind::kBytes: return "bytes";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kDict: return "dict";
    case Kind::kRange: return "range";
    case Kind::kView: return value.text();
    case Kind::kIterator: return "generator";
    case Kind::kNamespace: return "Namespace";
    case Kind::kLoop: return "LoopContext";
    case Kind::kCallable: return "function";
  }
  return "";
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool: return value.as_bool();
    case Kind::kInt: return value.as_int() != 0;
    case Kind::kFloat: return value.as_float() != 0;
    case Kind::kString:
    case Kind::kBytes: return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView: return !value.items().empty();
    case Kind::kDict: return !value.as_dict().entries.empty();
    case Kind::kLoop: return !value.as_loop().items.empty();
    default: return true;
  }
}

namespace {

std::string join_repr(const Values& items) {
  std::string out;
  for (const Value& v : items) out += (out.empty() ? "" : ", ") + to_repr(v);
  return out;
}

[[noreturn]] void cannot_print(const Value& value) {
  throw RawError(fmt::format("a value of type '{}' cannot be printed; print what is in it (| list, an attribute, a call)",
                             type_name(value)));
}

}  // namespace

std::string to_repr(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "None";
    case Kind::kBool: return value.as_bool() ? "True" : "False";
    case Kind::kInt: return fmt::format("{}", value.as_int());
    case Kind::kBigInt: return value.text();
    case Kind::kFloat: return float_text(value.as_float());
    case Kind::kString: return value.flag() ? "Markup(" + quote_text(value.text()) + ")" : quote_text(value.text());
    case Kind::kList: return "[" + join_repr(value.items()) + "]";
    case Kind::kTuple: return "(" + join_repr(value.items()) + (value.items().size() == 1 ? ",)" : ")");
    case Kind::kDict: {
      std::string out;
      for (const auto& [k, v] : value.as_dict().entries) out += (out.empty() ? "" : ", ") + to_repr(k) + ": " + to_repr(v);
      return "{" + out + "}";
    }
    case Kind::kView: return value.text() + "([" + join_repr(value.items()) + "])";
    case Kind::kBytes:
    case Kind::kRange:
    case Kind::kIterator:
    case Kind::kNamespace:
    case Kind::kLoop:
    case Kind::kCallable: cannot_print(value);
  }
  return "";
}

std::string to_text(const Value& value) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return "";
  return to_repr(value);
}

double number(const Value& value) {
  if (value.is(Kind::kFloat)) return value.as_float();
  if (value.is(Kind::kBigInt)) return std::strtod(value.text().c_str(), nullptr);
  return static_cast<double>(value.as_int());
}

namespace {

int sign_of(__int128 d) { return d < 0 ? -1 : d > 0; }

int compare_digits(const std::string& a, const std::string& b) {
  bool na = a[0] == '-', nb = b[0] == '-';
  if (na != nb) return na ? -1 : 1;
  int by_size = sign_of(static_cast<__int128>(a.size()) - static_cast<__int128>(b.size()));
  int order = by_size != 0 ? by_size : a.compare(b);
  return na ? -order : order;
}

std::string digits_of(const Value& v) { return v.is(Kind::kBigInt) ? v.text() : fmt::format("{}", v.as_int()); }

// Exact, as Python compares: no side is rounded.
int compare_numbers(const Value& a, const Value& b, bool& unordered) {
  bool fa = a.is(Kind::kFloat), fb = b.is(Kind::kFloat);
  if (!fa && !fb) {
    if (!a.is(Kind::kBigInt) && !b.is(Kind::kBigInt)) return sign_of(static_cast<__int128>(a.as_int()) - b.as_int());
    return compare_digits(digits_of(a), digits_of(b));
  }
  if (!fa) return -compare_numbers(b, a, unordered);
  double x = a.as_float();
  if (std::isnan(x) || (fb && std::isnan(b.as_float()))) {
    unordered = true;
    return 1;
  }
  if (fb) return x < b.as_float() ? -1 : x > b.as_float();
  if (std::isinf(x)) return x < 0 ? -1 : 1;
  double whole = std::trunc(x);
  int order = compare_digits(digits_of(Value::digits(fmt::format("{:.0f}", whole == 0 ? 0.0 : whole))), digits_of(b));
  if (order != 0) return order;
  return x < whole ? -1 : x > whole;
}

}  // namespace

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    bool unordered = false;
    return compare_numbers(a, b, unordered) == 0 && !unordered;
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return true;
    case Kind::kString:
    case Kind::kBytes: return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange: return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(), equal);
    case Kind::kDict: {
      const auto &x = a.as_dict(), &y = b.as_dict();
      if (x.entries.size() != y.entries.size()) return false;
      return std::all_of(x.entries.begin(), x.entries.end(), [&](const auto& entry) {
        const Value* other = y.find(entry.first);
        return other != nullptr && equal(entry.second, *other);
      });
    }
    case Kind::kView: throw RawError("comparing views of a dict is not supported; compare lists");
    default: return a.identity() == b.identity();
  }
}

int compare(const Value& a, const Value& b, bool& unordered, const char* op) {
  if (a.is_number() && b.is_number()) return compare_numbers(a, b, unordered);
  if (a.is_string() && b.is_string()) {
    int order = a.text().compare(b.text());  // bytes of UTF-8 order as code points do
    return order < 0 ? -1 : order > 0;
  }
  if (a.kind() == b.kind() && (a.is(Kind::kList) || a.is(Kind::kTuple))) {
    const Values &x = a.items(), &y = b.items();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i])) return compare(x[i], y[i], unordered, op);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  if (a.is_undefined()) throw RawError(a.text());
  if (b.is_undefined()) throw RawError(b.text());
  throw RawError(fmt::format("'{}' not supported between instances of '{}' and '{}'", op, type_name(a), type_name(b)));
}

bool less(const Value& a, const Value& b) {
  bool unordered = false;
  return compare(a, b, unordered, "<") < 0 && !unordered;
}

void check_hashable(const Value& value) {
  if (value.is(Kind::kTuple)) {
    for (const Value& v : value.items()) check_hashable(v);
  } else if (value.is(Kind::kList) || value.is(Kind::kDict) || value.is(Kind::kView)) {
    throw RawError(fmt::format("unhashable type: '{}'", type_name(value)));
  }
}

int64_t length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return 0;
    case Kind::kString: return count_codes(value.text());
    case Kind::kBytes: return static_cast<int64_t>(value.text().size());
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView: return static_cast<int64_t>(value.items().size());
    case Kind::kDict: return static_cast<int64_t>(value.as_dict().entries.size());
    case Kind::kLoop: return static_cast<int64_t>(value.as_loop().items.size());
    default: throw RawError(fmt::format("object of type '{}' has no len()", type_name(value)));
  }
}

bool is_sequence(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kBytes:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kRange: return true;
    default: return false;
  }
}

bool is_iterable(const Value& value) {
  return is_sequence(value) || value.is(Kind::kView) || value.is(Kind::kIterator) || value.is(Kind::kLoop);
}

Values iterate(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return {};
    case Kind::kString: {
      Values out;
      const std::string& text = value.text();
      for (size_t i = 0; i < text.size();) {
        size_t start = i;
        next_code(text, i);
        out.push_back(Value::string(text.substr(start, i - start), value.flag()));
      }
      return out;
    }
    case Kind::kBytes: {
      Values out;
      for (char c : value.text()) out.push_back(Value::integer(static_cast<unsigned char>(c)));
      return out;
    }
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView: return value.items();
    case Kind::kDict: {
      Values out;
      for (const auto& entry : value.as_dict().entries) out.push_back(entry.first);
      return out;
    }
    case Kind::kIterator: return value.take_rest();
    case Kind::kLoop: throw RawError("iterating over 'loop' is not supported");
    default: throw RawError(fmt::format("'{}' object is not iterable", type_name(value)));
  }
}

bool contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is_string()) {
        throw RawError(fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)));
      }
      return container.text().find(item.text()) != std::string::npos;
    case Kind::kDict: check_hashable(item); return container.as_dict().find(item) != nullptr;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView: {
      const Values& items = container.items();
      return std::any_of(items.begin(), items.end(), [&](const Value& v) { return equal(v, item); });
    }
    case Kind::kIterator: {
      Value v;
      while (container.take_one(v)) {
        if (equal(v, item)) return true;
      }
      return false;
    }
    case Kind::kUndefined: return false;
    case Kind::kBytes: throw RawError("searching in bytes is not supported");
    default: throw RawError(fmt::format("argument of type '{}' is not iterable", type_name(container)));
  }
}

}  // namespace weft::jinja
