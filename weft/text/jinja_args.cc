#include "weft/text/jinja_args.h"

#include <fmt/format.h>

#include <algorithm>

namespace weft::jinja {

Bound::Bound(const Args& args, const char* what, std::initializer_list<std::string_view> names, size_t required)
    : what_(what), values_(names.size(), nullptr) {
  if (args.positional.size() > names.size()) {
    throw RawError(fmt::format("{} takes at most {} arguments, got {}", what, names.size(), args.positional.size()));
  }
  for (size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) throw RawError(fmt::format("{} has no argument '{}'", what, name));
    const Value*& slot = values_[static_cast<size_t>(at - names.begin())];
    if (slot != nullptr) throw RawError(fmt::format("{} got two values for '{}'", what, name));
    slot = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) throw RawError(fmt::format("{} needs the argument '{}'", what, *(names.begin() + i)));
  }
}

const std::string& Bound::text(size_t i) const {
  if (values_[i]->is_undefined()) throw RawError(values_[i]->text());
  if (!values_[i]->is_string()) throw RawError(fmt::format("{} takes a string, not {}", what_, type_name(*values_[i])));
  return values_[i]->text();
}

int64_t Bound::integer(size_t i, int64_t otherwise) const {
  if (!has(i)) return otherwise;
  const Value& v = *values_[i];
  if (!v.is(Kind::kInt) && !v.is(Kind::kBool)) throw RawError(fmt::format("{} takes an integer, not {}", what_, type_name(v)));
  return v.as_int();
}

int64_t check_width(int64_t width) {
  if (width > kMaxValueWeight) throw RawError(fmt::format("a width of {} is too large", width));
  return width;
}

}  // namespace weft::jinja
