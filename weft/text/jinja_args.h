#pragma once
// Arguments of built-in filters, tests and methods, by position or by name. Wrong counts, names and types throw RawError.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "weft/text/jinja_value.h"

namespace weft::jinja {

class Bound {
 public:
  // The first `required` of `names` must be given.
  Bound(const Args& args, const char* what, std::initializer_list<std::string_view> names, size_t required = 0);

  bool has(size_t i) const { return values_[i] != nullptr; }
  const Value& operator[](size_t i) const { return *values_[i]; }
  const Value* pointer(size_t i) const { return values_[i]; }
  bool has_some(size_t i) const { return has(i) && !values_[i]->is(Kind::kNone); }  // given and not none
  const std::string& text(size_t i) const;
  int64_t integer(size_t i, int64_t otherwise) const;
  bool flag(size_t i, bool otherwise) const { return has(i) ? truth(*values_[i]) : otherwise; }

 private:
  const char* what_;
  std::vector<const Value*> values_;
};

// A count of characters or columns: above the limit of values it is an error, not an allocation.
int64_t check_width(int64_t width);

}  // namespace weft::jinja
