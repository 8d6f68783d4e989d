#pragma once
// The one error of templates: what failed, where in the template. Line and column count from 1, columns in bytes.

#include <string>

#include "weft/base/error.h"

namespace weft {

class TemplateError : public Error {
 public:
  TemplateError(const std::string& name, std::string message, int64_t line, int64_t column)
      : Error(fmt::format("{}:{}:{}: {}", name, line, column, message)),
        message_(std::move(message)),
        line_(line),
        column_(column) {}
  // Without the place; what raise_exception was given.
  const std::string& message() const { return message_; }
  int64_t line() const { return line_; }
  int64_t column() const { return column_; }

 private:
  std::string message_;
  int64_t line_, column_;
};

}  // namespace weft
