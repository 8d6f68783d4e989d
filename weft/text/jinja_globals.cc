#include "weft/text/jinja_globals.h"

#include <fmt/format.h>

#include <cstdlib>

#include "weft/text/jinja_args.h"

namespace weft::jinja {

namespace {

constexpr int64_t kMaxRange = 100000;  // that of the sandbox

Value range(Interpreter& in, Args& args) {
  Bound bound(args, "range()", {"start", "stop", "step"}, 1);
  if (!args.named.empty()) throw RawError("range() takes no keyword arguments");
  int64_t start = bound.has(1) ? bound.integer(0, 0) : 0, stop = bound.has(1) ? bound.integer(1, 0) : bound.integer(0, 0);
  int64_t step = bound.integer(2, 1);
  if (step == 0) throw RawError("range() arg 3 must not be zero");
  __int128 span = step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  __int128 stride = step > 0 ? static_cast<__int128>(step) : -static_cast<__int128>(step);
  __int128 count = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (count > kMaxRange) throw RawError(fmt::format("range is larger than {} items", kMaxRange));
  in.charge(static_cast<int64_t>(count));
  Values items;
  for (__int128 i = 0; i < count; ++i) items.push_back(Value::wide_integer(start + i * step));
  return Value::range(start, stop, step, std::move(items));
}

// The mapping that a positional argument gives, with the named arguments over it.
std::shared_ptr<Dict> gather(Interpreter& in, Args& args, const char* what) {
  auto dict = std::make_shared<Dict>();
  if (args.positional.size() > 1) throw RawError(fmt::format("{} takes at most one value by position", what));
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.is(Kind::kDict)) {
      in.charge(length(from));
      for (const auto& [key, value] : from.as_dict().entries) dict->set(key, value);
    } else {
      for (const Value& pair : in.items(from)) {
        Values parts = in.items(pair);
        if (parts.size() != 2) throw RawError(fmt::format("{} takes pairs", what));
        check_hashable(parts[0]);
        dict->set(parts[0], parts[1]);
      }
    }
  }
  for (auto& [name, value] : args.named) dict->set(Value::string(name), std::move(value));
  return dict;
}

Value make_dict(Interpreter& in, Args& args) { return Value::dict(gather(in, args, "dict()")); }

Value make_namespace(Interpreter& in, Args& args) {
  Value space = in.make_namespace();
  std::shared_ptr<Dict> fields = gather(in, args, "namespace()");
  for (const auto& [key, value] : fields->entries) {
    if (!key.is_string()) throw RawError("the fields of a namespace have names");
    space.as_namespace().set(key.text(), value);
  }
  return space;
}

Value raise_exception(Interpreter&, Args& args) {
  Bound bound(args, "raise_exception()", {"message"}, 1);
  throw RawError(to_text(bound[0]));
}

}  // namespace

std::string format_time(const std::string& format, const std::tm& given) {
  static constexpr const char* kDays[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
  static constexpr const char* kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                            "July",    "August",   "September", "October", "November", "December"};
  std::tm t = given;
  t.tm_isdst = 0;
  if (std::abs(t.tm_year) > 8000) throw RawError("the time is out of range");
  timegm(&t);  // fills weekday and day of year, brings the other fields into range
  int hour12 = t.tm_hour % 12 == 0 ? 12 : t.tm_hour % 12;
  std::string day = kDays[t.tm_wday], month = kMonths[t.tm_mon], out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    char code = ++i < format.size() ? format[i] : '\0';
    switch (code) {
      case 'a': out += day.substr(0, 3); break;
      case 'A': out += day; break;
      case 'b':
      case 'h': out += month.substr(0, 3); break;
      case 'B': out += month; break;
      case 'd': out += fmt::format("{:02}", t.tm_mday); break;
      case 'e': out += fmt::format("{:2}", t.tm_mday); break;
      case 'H': out += fmt::format("{:02}", t.tm_hour); break;
      case 'I': out += fmt::format("{:02}", hour12); break;
      case 'j': out += fmt::format("{:03}", t.tm_yday + 1); break;
      case 'm': out += fmt::format("{:02}", t.tm_mon + 1); break;
      case 'M': out += fmt::format("{:02}", t.tm_min); break;
      case 'p': out += t.tm_hour < 12 ? "AM" : "PM"; break;
      case 'S': out += fmt::format("{:02}", t.tm_sec); break;
      case 'y': out += fmt::format("{:02}", (t.tm_year + 1900) % 100); break;
      case 'Y': out += fmt::format("{}", t.tm_year + 1900); break;
      case 'F': out += fmt::format("{}-{:02}-{:02}", t.tm_year + 1900, t.tm_mon + 1, t.tm_mday); break;
      case 'T': out += fmt::format("{:02}:{:02}:{:02}", t.tm_hour, t.tm_min, t.tm_sec); break;
      case 'R': out += fmt::format("{:02}:{:02}", t.tm_hour, t.tm_min); break;
      case 'D': out += fmt::format("{:02}/{:02}/{:02}", t.tm_mon + 1, t.tm_mday, (t.tm_year + 1900) % 100); break;
      case 'u': out += fmt::format("{}", t.tm_wday == 0 ? 7 : t.tm_wday); break;
      case 'w': out += fmt::format("{}", t.tm_wday); break;
      case 'n': out += '\n'; break;
      case 't': out += '\t'; break;
      case '%': out += '%'; break;
      default:
        throw RawError(fmt::format("the directive '%{}' of strftime is not supported", code == '\0' ? "" : std::string(1, code)));
    }
  }
  return out;
}

void define_globals(Interpreter& in, const std::tm& now) {
  auto define = [&](const char* name, auto call) { in.define(name, Value::function(name, call)); };
  define("range", range);
  define("dict", make_dict);
  define("namespace", make_namespace);
  define("raise_exception", raise_exception);
  define("strftime_now", [now](Interpreter& inner, Args& args) {
    Bound bound(args, "strftime_now()", {"format"}, 1);
    return inner.text(format_time(bound.text(0), now));
  });
  for (const char* name : {"lipsum", "cycler", "joiner"}) {
    define(name,
           [name](Interpreter&, Args&) -> Value { throw RawError(fmt::format("the function '{}' is not supported", name)); });
  }
}

}  // namespace weft::jinja
