// The tests behind `is`.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "weft/text/jinja_args.h"
#include "weft/text/jinja_arithmetic.h"
#include "weft/text/jinja_filters.h"
#include "weft/text/jinja_unicode.h"

namespace weft::jinja {

namespace {

void no_arguments(const Args& args) { Bound bound(args, "the test", {}); }

template <Kind kKind>
bool is_kind(Interpreter&, const Value& input, Args& args) {
  no_arguments(args);
  return input.is(kKind);
}
bool is_defined(Interpreter&, const Value& input, Args& args) {
  no_arguments(args);
  return !input.is_undefined();
}
bool is_number(Interpreter&, const Value& input, Args& args) {
  no_arguments(args);
  return input.is_number();
}
bool is_integer(Interpreter&, const Value& input, Args& args) {
  no_arguments(args);
  return input.is_integer();
}
template <bool kTrue>
bool is_constant(Interpreter&, const Value& input, Args& args) {
  no_arguments(args);
  return input.is(Kind::kBool) && input.as_bool() == kTrue;
}
bool sequence(Interpreter&, const Value& input, Args& args) {
  no_arguments(args);
  return is_sequence(input);
}
bool iterable(Interpreter&, const Value& input, Args& args) {
  no_arguments(args);
  return is_iterable(input);
}
bool callable(Interpreter&, const Value& input, Args& args) {
  no_arguments(args);
  return input.is(Kind::kCallable) || input.is(Kind::kLoop) || input.is_undefined();
}
bool escaped(Interpreter&, const Value& input, Args& args) {
  no_arguments(args);
  return input.is_string() && input.flag();
}

template <bool (*Wanted)(char32_t), bool (*Other)(char32_t)>
bool has_case(Interpreter&, const Value& input, Args& args) {
  no_arguments(args);
  std::u32string codes = to_codes(to_text(input));
  return std::none_of(codes.begin(), codes.end(), [](char32_t c) { return Other(c) || is_title(c); }) &&
         std::any_of(codes.begin(), codes.end(), Wanted);
}

bool same_as(Interpreter&, const Value& input, Args& args) {
  Bound bound(args, "sameas", {"other"}, 1);
  const Value& other = bound[0];
  if (input.kind() != other.kind()) return false;
  switch (input.kind()) {
    case Kind::kNone: return true;
    case Kind::kBool:
    case Kind::kInt:
      if (input.as_int() < -5 || input.as_int() > 256) break;
      return input.as_int() == other.as_int();
    case Kind::kList:
    case Kind::kDict:
    case Kind::kNamespace:
    case Kind::kUndefined: return input.identity() == other.identity();
    default: break;
  }
  throw RawError(fmt::format("'is sameas' for '{}' depends on the interpreter and is not supported; use ==", type_name(input)));
}

double remainder(Interpreter& in, const Value& input, const Value& by) { return number(arithmetic(in, Op::kModulo, input, by)); }
void need_number(const Value& value) {
  if (value.is_undefined()) throw RawError(value.text());
  if (!value.is_number()) throw RawError(fmt::format("the test takes a number, not {}", type_name(value)));
}
template <int kRest>
bool rest_of_two(Interpreter& in, const Value& input, Args& args) {
  no_arguments(args);
  need_number(input);
  return remainder(in, input, Value::integer(2)) == kRest;
}
bool divisible_by(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "divisibleby", {"num"}, 1);
  need_number(input);
  need_number(bound[0]);
  return remainder(in, input, bound[0]) == 0;
}

bool test_equal(Interpreter&, const Value& input, Args& args) { return equal(input, Bound(args, "the test", {"other"}, 1)[0]); }
bool test_unequal(Interpreter&, const Value& input, Args& args) {
  return !equal(input, Bound(args, "the test", {"other"}, 1)[0]);
}
bool test_in(Interpreter&, const Value& input, Args& args) { return contains(Bound(args, "in", {"seq"}, 1)[0], input); }

int order(const Value& input, const Args& args, const char* op, bool& unordered) {
  Bound bound(args, op, {"other"}, 1);
  return compare(input, bound[0], unordered, op);
}
bool less_than(Interpreter&, const Value& input, Args& args) {
  bool unordered = false;
  return order(input, args, "<", unordered) < 0 && !unordered;
}
bool less_or_equal(Interpreter&, const Value& input, Args& args) {
  bool unordered = false;
  return order(input, args, "<=", unordered) <= 0 && !unordered;
}
bool greater_than(Interpreter&, const Value& input, Args& args) {
  bool unordered = false;
  return order(input, args, ">", unordered) > 0 && !unordered;
}
bool greater_or_equal(Interpreter&, const Value& input, Args& args) {
  bool unordered = false;
  return order(input, args, ">=", unordered) >= 0 && !unordered;
}

bool is_filter(Interpreter&, const Value& input, Args& args) {
  no_arguments(args);
  if (input.is_string() && is_unsupported_filter(input.text())) {
    throw RawError(fmt::format("the filter '{}' is not supported", input.text()));
  }
  return input.is_string() && find_filter(input.text()) != nullptr;
}
bool is_test(Interpreter&, const Value& input, Args& args) {
  no_arguments(args);
  return input.is_string() && find_test(input.text()) != nullptr;
}

}  // namespace

TestFunction find_test(const std::string& name) {
  static const std::unordered_map<std::string_view, TestFunction> kTests = {
      {"!=", test_unequal},
      {"<", less_than},
      {"<=", less_or_equal},
      {"==", test_equal},
      {">", greater_than},
      {">=", greater_or_equal},
      {"boolean", is_kind<Kind::kBool>},
      {"callable", callable},
      {"defined", is_defined},
      {"divisibleby", divisible_by},
      {"eq", test_equal},
      {"equalto", test_equal},
      {"escaped", escaped},
      {"even", rest_of_two<0>},
      {"false", is_constant<false>},
      {"filter", is_filter},
      {"float", is_kind<Kind::kFloat>},
      {"ge", greater_or_equal},
      {"greaterthan", greater_than},
      {"gt", greater_than},
      {"in", test_in},
      {"integer", is_integer},
      {"iterable", iterable},
      {"le", less_or_equal},
      {"lessthan", less_than},
      {"lower", has_case<is_lower, is_upper>},
      {"lt", less_than},
      {"mapping", is_kind<Kind::kDict>},
      {"ne", test_unequal},
      {"none", is_kind<Kind::kNone>},
      {"number", is_number},
      {"odd", rest_of_two<1>},
      {"sameas", same_as},
      {"sequence", sequence},
      {"string", is_kind<Kind::kString>},
      {"test", is_test},
      {"true", is_constant<true>},
      {"undefined", is_kind<Kind::kUndefined>},
      {"upper", has_case<is_upper, is_lower>},
  };
  auto at = kTests.find(name);
  return at == kTests.end() ? nullptr : at->second;
}

}  // namespace weft::jinja
