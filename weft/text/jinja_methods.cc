#include "weft/text/jinja_methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "weft/text/jinja_args.h"
#include "weft/text/jinja_eval.h"
#include "weft/text/jinja_unicode.h"

namespace weft::jinja {

namespace {

template <size_t N>
bool among(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::array<std::string_view, 9> kListChanges = {"append", "clear",   "extend", "insert", "pop",
                                                          "remove", "reverse", "sort",   "copy"};
constexpr std::array<std::string_view, 6> kDictChanges = {"clear", "fromkeys", "pop", "popitem", "setdefault", "update"};
constexpr std::array<std::string_view, 6> kStringRest = {"expandtabs",  "format_map", "isidentifier",
                                                         "isprintable", "maketrans",  "translate"};
constexpr std::array<std::string_view, 12> kNumberRest = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "fromhex",
    "from_bytes",       "hex",       "imag",       "numerator", "is_integer",  "real"};
constexpr std::array<std::string_view, 3> kRangeRest = {"start", "step", "stop"};

[[noreturn]] void refuse(const Value& object, const std::string& name) {
  throw RawError(
      fmt::format("the attribute '{}' of a '{}' is not allowed or not supported in templates", name, type_name(object)));
}

Value dict_get(Interpreter&, const Value& self, Args& args) {
  Bound bound(args, "get()", {"key", "default"}, 1);
  check_hashable(bound[0]);
  if (const Value* value = self.as_dict().find(bound[0])) return *value;
  return bound.has(1) ? bound[1] : Value();
}
Value dict_keys(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "keys()", {});
  return Value::view("dict_keys", in.items(self));
}
Value dict_values(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "values()", {});
  Values out;
  for (const auto& entry : self.as_dict().entries) out.push_back(entry.second);
  in.charge(static_cast<int64_t>(out.size()));
  return Value::view("dict_values", std::move(out));
}
Value dict_items(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "items()", {});
  Values out;
  for (const auto& [key, value] : self.as_dict().entries) out.push_back(Value::tuple({key, value}));
  in.charge(4 * static_cast<int64_t>(out.size()));
  return Value::view("dict_items", std::move(out));
}
Value dict_copy(Interpreter&, const Value& self, Args& args) {
  Bound bound(args, "copy()", {});
  return self;
}

Value list_count(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "count()", {"value"}, 1);
  in.charge_for(self);
  auto n = std::count_if(self.items().begin(), self.items().end(), [&](const Value& v) { return equal(v, bound[0]); });
  return Value::integer(n);
}
Value list_index(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "index()", {"value"}, 1);
  in.charge_for(self);
  const Values& items = self.items();
  auto at = std::find_if(items.begin(), items.end(), [&](const Value& v) { return equal(v, bound[0]); });
  if (at == items.end()) throw RawError(fmt::format("{} is not in the {}", to_repr(bound[0]), type_name(self)));
  return Value::integer(at - items.begin());
}

Value loop_cycle(Interpreter&, const Value& self, Args& args) {
  if (args.positional.empty()) throw RawError("no items for cycling given");
  if (!args.named.empty()) throw RawError("loop.cycle() takes no names");
  return args.positional[static_cast<size_t>(self.as_loop().index) % args.positional.size()];
}
Value loop_changed(Interpreter& in, const Value& self, Args& args) {
  if (!args.named.empty()) throw RawError("loop.changed() takes no names");
  Loop& loop = self.as_loop();
  Value now = Value::tuple(args.positional);
  check_size(now.depth() + 1, 0);
  in.charge_for(now);
  if (loop.has_changed && equal(loop.changed, now)) return Value::boolean(false);
  loop.value_depth = std::max(loop.value_depth, now.depth() + 1);
  loop.has_changed = true;
  loop.changed = std::move(now);
  return Value::boolean(true);
}

bool loop_attribute(const Value& self, const std::string& name, Value& out) {
  const Loop& loop = self.as_loop();
  int64_t size = static_cast<int64_t>(loop.items.size());
  auto neighbour = [&](int64_t at, const char* why) {
    return at >= 0 && at < size ? loop.items[static_cast<size_t>(at)] : Value::undefined(why);
  };
  if (name == "index")
    out = Value::integer(loop.index + 1);
  else if (name == "index0")
    out = Value::integer(loop.index);
  else if (name == "revindex")
    out = Value::integer(size - loop.index);
  else if (name == "revindex0")
    out = Value::integer(size - loop.index - 1);
  else if (name == "first")
    out = Value::boolean(loop.index == 0);
  else if (name == "last")
    out = Value::boolean(loop.index + 1 >= size);
  else if (name == "length")
    out = Value::integer(size);
  else if (name == "depth")
    out = Value::integer(loop.depth + 1);
  else if (name == "depth0")
    out = Value::integer(loop.depth);
  else if (name == "previtem")
    out = neighbour(loop.index - 1, "there is no previous item");
  else if (name == "nextitem")
    out = neighbour(loop.index + 1, "there is no next item");
  else
    return false;
  return true;
}

Method find_method(const Value& object, const std::string& name) {
  switch (object.kind()) {
    case Kind::kString:
      if (Method method = find_string_method(name)) {
        if (object.flag() && !works_on_markup(name)) refuse(object, name);
        return method;
      }
      if (among(kStringRest, name)) refuse(object, name);
      return nullptr;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
      if (name == "count") return list_count;
      if (name == "index") return list_index;
      if (object.is(Kind::kList) && among(kListChanges, name)) refuse(object, name);
      if (object.is(Kind::kRange) && among(kRangeRest, name)) refuse(object, name);
      return nullptr;
    case Kind::kDict:
      if (name == "get") return dict_get;
      if (name == "keys") return dict_keys;
      if (name == "values") return dict_values;
      if (name == "items") return dict_items;
      if (name == "copy") return dict_copy;
      if (among(kDictChanges, name)) refuse(object, name);
      return nullptr;
    case Kind::kLoop:
      if (name == "cycle") return loop_cycle;
      if (name == "changed") return loop_changed;
      return nullptr;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kBigInt:
    case Kind::kFloat:
      if (among(kNumberRest, name) || name == "to_bytes") refuse(object, name);
      return nullptr;
    case Kind::kBytes:
    case Kind::kIterator:
    case Kind::kView: refuse(object, name);
    default: return nullptr;
  }
}

// What a slice takes of `size` elements: as Python clamps it.
std::vector<size_t> slice_indexes(int64_t size, const Value& start, const Value& stop, const Value& step) {
  auto part = [](const Value& v, int64_t otherwise) {
    if (v.is(Kind::kNone)) return otherwise;
    if (v.is(Kind::kInt) || v.is(Kind::kBool)) return v.as_int();
    if (v.is(Kind::kBigInt)) return v.text()[0] == '-' ? INT64_MIN : INT64_MAX;
    throw RawError(v.is_undefined() ? v.text() : "slice indices must be integers or none");
  };
  int64_t by = part(step, 1);
  if (by == 0) throw RawError("slice step cannot be zero");
  auto clamp = [&](int64_t i) {
    if (i < 0) i = i < -size ? (by < 0 ? -1 : 0) : i + size;
    return std::min(i, by < 0 ? size - 1 : size);
  };
  int64_t from = start.is(Kind::kNone) ? (by < 0 ? size - 1 : 0) : clamp(part(start, 0));
  int64_t to = stop.is(Kind::kNone) ? (by < 0 ? -1 : size) : clamp(part(stop, 0));
  std::vector<size_t> out;
  for (__int128 i = from; by > 0 ? i < to : i > to; i += by) out.push_back(static_cast<size_t>(i));
  return out;
}

}  // namespace

std::string quoted_name(const std::string& name) { return quote_text(name); }

bool find_attribute(Interpreter& in, const Value& object, const std::string& name, Value& out) {
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__")) refuse(object, name);
  if (object.is(Kind::kNamespace)) {
    in.charge(static_cast<int64_t>(object.as_namespace().fields.size()) / 4);
    const Value* value = object.as_namespace().find(name);
    if (value != nullptr) out = *value;
    return value != nullptr;
  }
  if (object.is(Kind::kCallable)) {
    for (const auto& [key, value] : object.as_callable().attributes) {
      if (key == name) return out = value, true;
    }
    if (object.as_callable().attributes.empty()) refuse(object, name);
    return false;
  }
  if (object.is(Kind::kLoop) && loop_attribute(object, name, out)) return true;
  if (object.is(Kind::kTuple) && object.flag() && (name == "grouper" || name == "list")) {
    out = object.items()[name == "list"];
    return true;
  }
  Method method = find_method(object, name);
  if (method == nullptr) return false;
  out = Value::method(name, object, [method, object](Interpreter& inner, Args& args) { return method(inner, object, args); });
  return true;
}

bool element(const Value& object, int64_t index, Value& out) {
  switch (object.kind()) {
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange: {
      int64_t size = static_cast<int64_t>(object.items().size());
      if (index < 0) index += size;
      if (index < 0 || index >= size) return false;
      out = object.items()[static_cast<size_t>(index)];
      return true;
    }
    case Kind::kString: {
      int64_t size = count_codes(object.text());
      if (index < 0) index += size;
      if (index < 0 || index >= size) return false;
      size_t start = 0;
      for (; index > 0; --index) next_code(object.text(), start);
      size_t end = start;
      next_code(object.text(), end);
      out = Value::string(object.text().substr(start, end - start), object.flag());
      return true;
    }
    case Kind::kBytes: throw RawError("elements of bytes are not supported");
    default: return false;
  }
}

Value slice(Interpreter& in, const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is_undefined()) throw RawError(object.text());
  if (object.is_string()) {
    std::u32string codes = to_codes(object.text()), out;
    for (size_t i : slice_indexes(static_cast<int64_t>(codes.size()), start, stop, step)) out += codes[i];
    return in.text(to_utf8(out), object.flag());
  }
  if (!object.is(Kind::kList) && !object.is(Kind::kTuple) && !object.is(Kind::kRange)) {
    throw RawError(fmt::format("'{}' object cannot be sliced", type_name(object)));
  }
  Values out;
  const Values& items = object.items();
  for (size_t i : slice_indexes(static_cast<int64_t>(items.size()), start, stop, step)) out.push_back(items[i]);
  in.charge(static_cast<int64_t>(out.size()));
  if (object.is(Kind::kList)) return Value::list(std::move(out));
  return object.is(Kind::kTuple) ? Value::tuple(std::move(out)) : Value::range(0, 0, 1, std::move(out));
}

}  // namespace weft::jinja
