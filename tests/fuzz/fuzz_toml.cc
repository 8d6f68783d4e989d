// Recipes and overrides from hostile bytes: every outcome is a recipe or a UsageError, and a recipe that was accepted prints to
// text that reads back to the same recipe. The first byte chooses the command; bytes after a NUL are an override.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/error.h"
#include "weft/train/recipe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto use = static_cast<weft::RecipeUse>(data[0] % 3);
  const std::string_view all(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t nul = all.find('\0');
  const std::string_view toml = all.substr(0, nul);
  std::vector<std::string> overrides;
  if (nul != std::string_view::npos) overrides.emplace_back(all.substr(nul + 1));
  try {
    const weft::Recipe recipe = weft::parse_recipe(toml, "fuzz.toml", overrides, use);
    const std::string text = weft::print_recipe(recipe);
    if (weft::print_recipe(weft::parse_recipe(text, "fuzz.toml", {}, use)) != text) std::abort();
  } catch (const weft::UsageError&) {
  }
  return 0;
}
