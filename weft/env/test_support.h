#pragma once
// What an error says.

#include <functional>
#include <string>

#include "weft/base/error.h"

namespace weft::test {

inline std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace weft::test
