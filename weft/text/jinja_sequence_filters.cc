#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "weft/text/jinja_args.h"
#include "weft/text/jinja_arithmetic.h"
#include "weft/text/jinja_eval.h"
#include "weft/text/jinja_filters.h"
#include "weft/text/jinja_unicode.h"

namespace weft::jinja {

namespace {

// `a.b.0` from an item, as the arguments named `attribute` mean it.
class Getter {
 public:
  Getter(Interpreter& in, const Value* attribute, const Value* otherwise = nullptr) : in_(in), otherwise_(otherwise) {
    if (attribute == nullptr || attribute->is(Kind::kNone)) return;
    if (attribute->is(Kind::kInt)) {
      parts_.push_back(*attribute);
      return;
    }
    if (!attribute->is_string()) throw RawError("an attribute is a string or an integer");
    std::string_view rest = attribute->text();
    while (true) {
      std::string_view part = rest.substr(0, rest.find('.'));
      bool digits = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
      parts_.push_back(digits ? Value::digits(std::string(part)) : Value::string(std::string(part)));
      if (part.size() == rest.size()) break;
      rest.remove_prefix(part.size() + 1);
    }
  }

  Value operator()(Value item) const {
    for (const Value& part : parts_) {
      in_.charge(1);
      item = in_.item(item, part);
      if (item.is_undefined() && otherwise_ != nullptr && !otherwise_->is(Kind::kNone)) item = *otherwise_;
    }
    return item;
  }

 private:
  Interpreter& in_;
  const Value* otherwise_;
  std::vector<Value> parts_;
};

// Sort key: strings without case unless asked otherwise.
Value fold_case(Interpreter& in, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  in.charge_for(value);
  return Value::string(lower(value.text()));
}

// Steps of a comparison sort.
void charge_sort(Interpreter& in, const Values& keys) {
  int64_t weight = 0, levels = 1;
  for (const Value& key : keys) weight += 1 + key.weight() / 16;
  for (size_t n = keys.size(); n > 1; n /= 2) ++levels;
  in.charge(weight * levels);
}

std::vector<size_t> sorted_order(Interpreter& in, const Values& keys, bool reverse) {
  charge_sort(in, keys);
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return reverse ? less(keys[b], keys[a]) : less(keys[a], keys[b]); });
  return order;
}

Values pick(const Values& items, const std::vector<size_t>& order) {
  Values out;
  for (size_t i : order) out.push_back(items[i]);
  return out;
}

Value sort(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "sort", {"reverse", "case_sensitive", "attribute"});
  if (bound.has_some(2) && bound[2].is_string() && bound[2].text().find(',') != std::string::npos) {
    throw RawError("sort by several attributes is not supported");
  }
  Values items = in.items(input), keys;
  Getter get(in, bound.pointer(2));
  for (const Value& item : items) keys.push_back(fold_case(in, get(item), bound.flag(1, false)));
  return in.list(pick(items, sorted_order(in, keys, bound.flag(0, false))));
}

Value dictsort(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "dictsort", {"case_sensitive", "by", "reverse"});
  if (!input.is(Kind::kDict))
    throw RawError(input.is_undefined() ? input.text() : "dictsort takes a mapping, not " + type_name(input));
  std::string by = bound.has(1) ? bound.text(1) : "key";
  if (by != "key" && by != "value") throw RawError("dictsort: 'by' must be 'key' or 'value'");
  Values items, keys;
  for (const auto& [key, value] : input.as_dict().entries) {
    items.push_back(Value::tuple({key, value}));
    keys.push_back(fold_case(in, by == "key" ? key : value, bound.flag(0, false)));
  }
  return in.list(pick(items, sorted_order(in, keys, bound.flag(2, false))));
}

Value unique(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "unique", {"case_sensitive", "attribute"});
  Getter get(in, bound.pointer(1));
  Dict seen;
  Values out;
  for (const Value& item : in.items(input)) {
    Value key = fold_case(in, get(item), bound.flag(0, false));
    check_hashable(key);
    if (!key.is_string()) in.charge(static_cast<int64_t>(seen.entries.size()));
    if (seen.find(key) != nullptr) continue;
    seen.set(std::move(key), Value());
    out.push_back(item);
  }
  return Value::iterator(std::move(out));
}

Value groupby(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "groupby", {"attribute", "default", "case_sensitive"}, 1);
  Getter get(in, bound.pointer(0), bound.pointer(1));
  Values items = in.items(input), keys, names;
  for (const Value& item : items) {
    names.push_back(get(item));
    keys.push_back(fold_case(in, names.back(), bound.flag(2, false)));
  }
  std::vector<size_t> order = sorted_order(in, keys, false);
  Values out;
  for (size_t i = 0; i < order.size();) {
    size_t first = order[i];
    Values group;
    for (; i < order.size() && equal(keys[order[i]], keys[first]); ++i) group.push_back(items[order[i]]);
    if (group.empty()) ++i, group.push_back(items[first]);  // NaN, which equals nothing
    out.push_back(Value::tuple({names[first], in.list(std::move(group))}, true));
  }
  return in.list(std::move(out));
}

template <bool kMax>
Value extreme(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, kMax ? "max" : "min", {"case_sensitive", "attribute"});
  Getter get(in, bound.pointer(1));
  Values items = in.items(input);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  Value best = items[0], best_key = fold_case(in, get(items[0]), bound.flag(0, false));
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = fold_case(in, get(items[i]), bound.flag(0, false));
    in.charge(1 + std::min(key.weight(), best_key.weight()) / 16);
    if (kMax ? less(best_key, key) : less(key, best_key)) best = items[i], best_key = std::move(key);
  }
  return best;
}

Value sum(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "sum", {"attribute", "start"});
  Getter get(in, bound.pointer(0));
  Value total = bound.has(1) ? bound[1] : Value::integer(0);
  if (total.is_string()) throw RawError("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : in.items(input)) total = arithmetic(in, Op::kAdd, total, get(item));
  return total;
}

Value join(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "join", {"d", "attribute"});
  std::string between = bound.has(0) ? to_text(bound[0]) : "", out;
  Getter get(in, bound.pointer(1));
  bool first = true;
  for (const Value& item : in.items(input)) {
    Value value = get(item);
    in.charge_for(value);
    if (!first) out += between;
    out += to_text(value);
    first = false;
    check_size(1, static_cast<int64_t>(out.size()));
  }
  return in.text(std::move(out));
}

Value first(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "first", {});
  Value out;
  if (input.is(Kind::kIterator)) return input.take_one(out) ? out : Value::undefined("No first item, sequence was empty.");
  Values items = in.items(input);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "last", {});
  if (input.is(Kind::kIterator)) throw RawError("'generator' object is not reversible; use | list first");
  Values items = in.items(input);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value reverse(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "reverse", {});
  if (input.is_string()) {
    in.charge_for(input);
    std::u32string codes = to_codes(input.text());
    std::reverse(codes.begin(), codes.end());
    return in.text(to_utf8(codes), input.flag());
  }
  Values items = in.items(input);
  std::reverse(items.begin(), items.end());
  return Value::iterator(std::move(items));
}

Value list(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "list", {});
  return in.list(in.items(input));
}

Value items_filter(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "items", {});
  if (input.is_undefined()) return Value::iterator({});
  if (!input.is(Kind::kDict)) throw RawError("Can only get item pairs from a mapping.");
  Values out;
  for (const auto& [key, value] : input.as_dict().entries) out.push_back(Value::tuple({key, value}));
  in.charge(4 * static_cast<int64_t>(out.size()));
  return Value::iterator(std::move(out));
}

Value length_filter(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "length", {});
  in.charge(input.is_string() ? input.weight() / 16 : 1);
  return Value::integer(length(input));
}

Value batch(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "batch", {"linecount", "fill_with"}, 1);
  int64_t size = check_width(bound.integer(0, 1));
  if (size < 1) throw RawError("batch: the count must be at least 1");
  Values out, row;
  for (Value& item : in.items(input)) {
    row.push_back(std::move(item));
    if (static_cast<int64_t>(row.size()) == size) out.push_back(in.list(std::exchange(row, {})));
  }
  if (!row.empty()) {
    if (bound.has_some(1)) in.charge(size), row.resize(static_cast<size_t>(size), bound[1]);
    out.push_back(in.list(std::move(row)));
  }
  return Value::iterator(std::move(out));
}

// The rest of the arguments, for the filter or test that map, select... were given by name.
std::string take_name(Args& args, const char* what) {
  if (!args.positional[0].is_string()) throw RawError(fmt::format("{} takes the name of a filter or test", what));
  std::string name = args.positional[0].text();
  args.positional.erase(args.positional.begin());
  return name;
}

Value map(Interpreter& in, const Value& input, Args& args) {
  if (args.positional.empty()) {
    Bound bound(args, "map", {"attribute", "default"}, 1);
    Getter get(in, bound.pointer(0), bound.pointer(1));
    Values out;
    for (Value& item : in.items(input)) out.push_back(get(std::move(item)));
    return Value::iterator(std::move(out));
  }
  std::string name = take_name(args, "map");
  FilterFunction filter = find_filter(name);
  if (filter == nullptr) throw RawError(fmt::format("no filter named '{}'", name));
  Values out;
  for (const Value& item : in.items(input)) {
    Args again = args;
    in.charge(1);
    out.push_back(filter(in, item, again));
  }
  return Value::iterator(std::move(out));
}

template <bool kKeep, bool kByAttribute>
Value select(Interpreter& in, const Value& input, Args& args) {
  const char* what = kKeep ? (kByAttribute ? "selectattr" : "select") : (kByAttribute ? "rejectattr" : "reject");
  Value attribute;
  if (kByAttribute) {
    if (args.positional.empty()) throw RawError(fmt::format("{} needs the name of an attribute", what));
    attribute = args.positional[0];
    args.positional.erase(args.positional.begin());
  }
  Getter get(in, kByAttribute ? &attribute : nullptr);
  TestFunction test = nullptr;
  if (!args.positional.empty()) {
    std::string name = take_name(args, what);
    test = find_test(name);
    if (test == nullptr) throw RawError(fmt::format("no test named '{}'", name));
  } else if (!args.named.empty()) {
    throw RawError(fmt::format("{} has no argument '{}'", what, args.named[0].first));
  }
  Values out;
  for (Value& item : in.items(input)) {
    Value tested = get(item);
    Args again = args;
    in.charge(1 + tested.weight() / 64);
    if ((test != nullptr ? test(in, tested, again) : truth(tested)) == kKeep) out.push_back(std::move(item));
  }
  return Value::iterator(std::move(out));
}

}  // namespace

FilterFunction find_sequence_filter(const std::string& name) {
  static const std::unordered_map<std::string_view, FilterFunction> kFilters = {
      {"batch", batch},
      {"count", length_filter},
      {"dictsort", dictsort},
      {"first", first},
      {"groupby", groupby},
      {"items", items_filter},
      {"join", join},
      {"last", last},
      {"length", length_filter},
      {"list", list},
      {"map", map},
      {"max", extreme<true>},
      {"min", extreme<false>},
      {"reject", select<false, false>},
      {"rejectattr", select<false, true>},
      {"reverse", reverse},
      {"select", select<true, false>},
      {"selectattr", select<true, true>},
      {"sort", sort},
      {"sum", sum},
      {"unique", unique},
  };
  auto at = kFilters.find(name);
  return at == kFilters.end() ? nullptr : at->second;
}

}  // namespace weft::jinja
