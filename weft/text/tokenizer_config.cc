#include "weft/text/tokenizer_config.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "weft/base/error.h"
#include "weft/text/json_node.h"
#include "weft/text/unicode.h"

namespace weft::tok {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;
constexpr int64_t kMaxTemplateBytes = int64_t{4} << 20;
constexpr size_t kMaxTemplates = 256;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Fields named *_token: the text, or an object with it. Flags like add_bos_token have the same ending and are no texts.
void add_special_tokens(const JsonNode& root, std::map<std::string, std::string>& names) {
  if (!root.raw().is_object()) root.fail("expected an object");
  for (const auto& [key, value] : root.raw().items()) {
    if (!key.ends_with("_token") || value.is_null() || value.is_boolean()) continue;
    const JsonNode node = root.at(key);
    names.emplace(key, value.is_object() ? node.at("content").string() : node.string());
  }
  const auto extra = root.find("extra_special_tokens");
  if (!extra || !extra->raw().is_object()) return;
  for (const auto& [key, value] : extra->raw().items()) {
    if (value.is_null()) continue;
    const JsonNode node = extra->at(key);
    names.emplace(key, value.is_object() ? node.at("content").string() : node.string());
  }
}

std::map<std::string, std::string> config_templates(const JsonNode& root) {
  std::map<std::string, std::string> templates;
  const auto field = root.find("chat_template");
  if (!field) return templates;
  if (field->raw().is_string()) {
    templates["default"] = field->string();
    return templates;
  }
  if (!field->raw().is_array()) field->fail("expected a string or a list of {name, template}");
  for (int64_t i = 0; i < field->size(); ++i) {
    const JsonNode item = field->item(i);
    templates[item.at("name").string()] = item.at("template").string();
  }
  return templates;
}

std::string read_template(const fs::path& path) {
  std::string text = read_text_file(path.string(), kMaxTemplateBytes);
  if (const auto offset = find_invalid_utf8(text)) throw FileError(path.string(), fmt::format("byte {}", *offset), "not UTF-8");
  return text;
}

std::map<std::string, std::string> file_templates(const fs::path& dir) {
  std::map<std::string, std::string> templates;
  const fs::path main = dir / "chat_template.jinja";
  if (is_there(main)) templates["default"] = read_template(main);
  const fs::path folder = dir / "additional_chat_templates";
  std::error_code error;
  if (!fs::is_directory(folder, error)) return templates;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    if (it->path().extension() != ".jinja") continue;
    if (templates.size() >= kMaxTemplates)
      throw FileError(folder.string(), "", fmt::format("more than {} templates", kMaxTemplates));
    templates[it->path().stem().string()] = read_template(it->path());
  }
  if (error) throw FileError(folder.string(), "", error.message());
  return templates;
}

}  // namespace

TokenizerConfig load_tokenizer_config(const std::string& dir) {
  TokenizerConfig config;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path path = fs::path(dir) / name;
    if (!is_there(path)) continue;
    const std::string file = path.string();
    const nlohmann::json document = parse_json(read_text_file(file, kMaxConfigBytes), file);
    const JsonNode root(document, file);
    add_special_tokens(root, config.special_tokens);
    if (std::string_view(name) == "tokenizer_config.json") config.chat_templates = config_templates(root);
  }
  std::map<std::string, std::string> files = file_templates(dir);
  if (!files.empty()) config.chat_templates = std::move(files);
  return config;
}

}  // namespace weft::tok
