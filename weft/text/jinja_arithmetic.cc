#include "weft/text/jinja_arithmetic.h"

#include <fmt/format.h>

#include <cmath>

#include "weft/text/jinja_eval.h"
#include "weft/text/jinja_format.h"

namespace weft::jinja {

namespace {

const char* symbol(Op op) {
  switch (op) {
    case Op::kAdd: return "+";
    case Op::kSubtract: return "-";
    case Op::kMultiply: return "*";
    case Op::kDivide: return "/";
    case Op::kFloorDivide: return "//";
    case Op::kModulo: return "%";
    default: return "** or pow()";
  }
}

[[noreturn]] void too_large() { throw RawError("arithmetic on integers beyond 64 bits is not supported"); }

double finite_number(const Value& v) {
  double d = number(v);
  if (v.is(Kind::kBigInt) && std::isinf(d)) throw RawError("int too large to convert to float");
  return d;
}

double float_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

double float_floor_divide(double a, double b) {
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

Value float_power(double a, double b) {
  if (a == 0 && b < 0) throw RawError("0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(b) && b != std::floor(b)) throw RawError("a negative number to a fractional power is not supported");
  double out = std::pow(a, b);
  if (std::isinf(out) && std::isfinite(a) && std::isfinite(b)) throw RawError("the result of ** is out of range");
  return Value::real(out);
}

Value int_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) throw RawError("0.0 cannot be raised to a negative power");
    return float_power(static_cast<double>(base), static_cast<double>(exponent));
  }
  if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
  __int128 out = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(out, static_cast<__int128>(base), &out)) too_large();
  }
  return Value::wide_integer(out);
}

Value on_floats(Op op, double a, double b) {
  switch (op) {
    case Op::kAdd: return Value::real(a + b);
    case Op::kSubtract: return Value::real(a - b);
    case Op::kMultiply: return Value::real(a * b);
    case Op::kPower: return float_power(a, b);
    default: break;
  }
  if (b == 0) throw RawError("float division by zero");
  if (op == Op::kDivide) return Value::real(a / b);
  if (op == Op::kModulo) return Value::real(float_modulo(a, b));
  return Value::real(float_floor_divide(a, b));
}

Value on_integers(Op op, const Value& x, const Value& y) {
  if (x.is(Kind::kBigInt) || y.is(Kind::kBigInt)) too_large();
  __int128 a = x.as_int(), b = y.as_int();
  switch (op) {
    case Op::kAdd: return Value::wide_integer(a + b);
    case Op::kSubtract: return Value::wide_integer(a - b);
    case Op::kMultiply: return Value::wide_integer(a * b);
    case Op::kPower: return int_power(x.as_int(), y.as_int());
    default: break;
  }
  if (b == 0) throw RawError(op == Op::kDivide ? "division by zero" : "integer division or modulo by zero");
  if (op == Op::kDivide) return Value::real(static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
  __int128 quotient = a / b, rest = a % b;
  if (rest != 0 && (rest < 0) != (b < 0)) --quotient, rest += b;
  return Value::wide_integer(op == Op::kModulo ? rest : quotient);
}

bool is_listlike(const Value& v) { return v.is(Kind::kList) || v.is(Kind::kTuple); }

Value repeat(Interpreter& in, const Value& what, int64_t times) {
  times = std::max<int64_t>(times, 0);
  int64_t size = what.is_string() ? static_cast<int64_t>(what.text().size()) : what.weight();
  if (size > 0 && times > kMaxValueWeight / size)
    throw RawError(fmt::format("'*' gives more than {} bytes or items", kMaxValueWeight));
  in.charge(size * times / 16);
  if (what.is_string()) {
    std::string out;
    if (!what.text().empty()) {
      for (int64_t i = 0; i < times; ++i) out += what.text();
    }
    return Value::string(std::move(out), what.flag());
  }
  Values out;
  if (!what.items().empty()) {
    for (int64_t i = 0; i < times; ++i) out.insert(out.end(), what.items().begin(), what.items().end());
  }
  return what.is(Kind::kList) ? Value::list(std::move(out)) : Value::tuple(std::move(out));
}

[[noreturn]] void refuse(Op op, const Value& a, const Value& b) {
  if (a.is_undefined()) throw RawError(a.text());
  if (b.is_undefined()) throw RawError(b.text());
  if (op == Op::kAdd && (a.is_string() || is_listlike(a))) {
    throw RawError(fmt::format("can only concatenate {0} (not \"{1}\") to {0}", type_name(a), type_name(b)));
  }
  throw RawError(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", symbol(op), type_name(a), type_name(b)));
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

Value arithmetic(Interpreter& in, Op op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    bool floats = a.is(Kind::kFloat) || b.is(Kind::kFloat);
    return floats ? on_floats(op, finite_number(a), finite_number(b)) : on_integers(op, a, b);
  }
  if (op == Op::kAdd && a.is_string() && b.is_string()) {
    if (!a.flag() && !b.flag()) return in.text(a.text() + b.text());
    auto escaped = [](const Value& v) { return v.flag() ? v.text() : escape_html(v.text()); };
    return in.text(escaped(a) + escaped(b), true);
  }
  if (op == Op::kAdd && is_listlike(a) && a.kind() == b.kind()) {
    Values out = a.items();
    out.insert(out.end(), b.items().begin(), b.items().end());
    in.charge(static_cast<int64_t>(out.size()));
    return a.is(Kind::kList) ? Value::list(std::move(out)) : Value::tuple(std::move(out));
  }
  if (op == Op::kMultiply) {
    auto is_count = [](const Value& v) { return v.is(Kind::kInt) || v.is(Kind::kBool); };
    if ((a.is_string() || is_listlike(a)) && is_count(b)) return repeat(in, a, b.as_int());
    if ((b.is_string() || is_listlike(b)) && is_count(a)) return repeat(in, b, a.as_int());
  }
  if (op == Op::kModulo && a.is_string()) {
    if (a.flag()) throw RawError("% on a string marked safe is not supported");
    if (b.is_undefined()) throw RawError(b.text());
    return in.text(percent_format(a.text(), b));
  }
  refuse(op, a, b);
}

Value negative(const Value& v) {
  if (v.is(Kind::kFloat)) return Value::real(-v.as_float());
  if (v.is(Kind::kBigInt)) return Value::digits(v.text()[0] == '-' ? v.text().substr(1) : "-" + v.text());
  if (v.is_number()) return Value::wide_integer(-static_cast<__int128>(v.as_int()));
  if (v.is_undefined()) throw RawError(v.text());
  throw RawError(fmt::format("bad operand type for unary -: '{}'", type_name(v)));
}

Value positive(const Value& v) {
  if (v.is(Kind::kBool)) return Value::integer(v.as_int());
  if (v.is_number()) return v;
  if (v.is_undefined()) throw RawError(v.text());
  throw RawError(fmt::format("bad operand type for unary +: '{}'", type_name(v)));
}

}  // namespace weft::jinja
